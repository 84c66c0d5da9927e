// The grammar of compressor specs: "method:key=value,...+decorator[=value]...".
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tersum::compressors {

/// A spec taken apart; nothing in it has been looked up yet.
struct ParsedSpec {
  struct Decorator {
    std::string name;
    std::optional<std::string> value;
  };
  std::string method;
  std::map<std::string, std::string> values;
  std::vector<Decorator> decorators;
};

/// Blanks around words do not count. Error InvalidArgument, naming the spec and the place, for bad
/// syntax and for a key given twice.
ParsedSpec parse_spec(std::string_view spec);

}  // namespace tersum::compressors
