// Which compressor a gradient gets.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tersum/compressor.hpp"

namespace tersum::compressors {

/// The general setting, the rules by name and the size limit of one exchange. Immutable; any
/// thread.
class CompressorRules {
 public:
  /// `rules` is "glob=spec; glob=spec; ...": * is any text, ? any one character, the first rule
  /// that matches the whole name wins. All specs are parsed here: Error InvalidArgument names the
  /// rule and what is wrong with it.
  CompressorRules(std::string default_spec, std::string rules, std::size_t min_bytes);

  /// The compressor of gradient `key` of `count` elements: `explicit_spec` if given; else none for
  /// integer, bool and fp64 gradients and below the size limit; else the first rule that matches;
  /// else the general setting. Error InvalidArgument for an explicit spec that is wrong, or that
  /// would compress an integer, bool or fp64 gradient.
  std::shared_ptr<const Compressor> choose(std::string_view key, std::size_t count, DType dtype,
                                           const std::optional<std::string>& explicit_spec) const;

  /// The rules with canonical specs: the same text for all spellings of the same rules.
  std::string rules() const;

 private:
  struct Rule {
    std::string glob;
    std::shared_ptr<const Compressor> compressor;
  };

  std::shared_ptr<const Compressor> none_;
  std::shared_ptr<const Compressor> default_;
  std::vector<Rule> rules_;
  std::size_t min_bytes_;
};

}  // namespace tersum::compressors
