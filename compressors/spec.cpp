#include "compressors/spec.hpp"

#include "compressors/text.hpp"
#include "tersum/error.hpp"

namespace tersum::compressors {
namespace {

[[noreturn]] void refuse(std::string_view spec, const std::string& what) {
  throw Error(Code::InvalidArgument, "compressor " + quoted(spec) + ": " + what);
}

void parse_method(std::string_view spec, std::string_view text, ParsedSpec& parsed) {
  const std::size_t colon = text.find(':');
  parsed.method = trim(text.substr(0, colon));
  if (parsed.method.empty()) {
    refuse(spec, "there is no method name; write method:key=value,...+decorator");
  }
  if (colon == std::string_view::npos) return;
  for (const std::string_view pair : split(text.substr(colon + 1), ',')) {
    const std::size_t equals = pair.find('=');
    const std::string key(trim(pair.substr(0, equals)));
    if (equals == std::string_view::npos || key.empty()) {
      refuse(spec, quoted(pair) + " is not key=value");
    }
    const std::string value(trim(pair.substr(equals + 1)));
    if (value.empty()) refuse(spec, quoted(key + "=") + " has no value");
    if (!parsed.values.emplace(key, value).second) refuse(spec, quoted(key) + " is given twice");
  }
}

ParsedSpec::Decorator parse_decorator(std::string_view spec, std::string_view text) {
  const std::size_t equals = text.find('=');
  ParsedSpec::Decorator decorator{std::string(trim(text.substr(0, equals))), std::nullopt};
  if (decorator.name.empty()) refuse(spec, "there is no decorator name after a '+'");
  if (equals != std::string_view::npos) decorator.value = trim(text.substr(equals + 1));
  return decorator;
}

}  // namespace

ParsedSpec parse_spec(std::string_view spec) {
  ParsedSpec parsed;
  const auto pieces = split(spec, '+');
  parse_method(spec, pieces[0], parsed);
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    parsed.decorators.push_back(parse_decorator(spec, pieces[i]));
  }
  return parsed;
}

}  // namespace tersum::compressors
