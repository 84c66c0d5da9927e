// SpecParameters: typed access to the parameters of one method in a spec.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "compressors/text.hpp"
#include "tersum/compressor.hpp"

namespace tersum {
namespace {

using compressors::number_text;

template <typename T>
bool parse(const std::string& text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

[[noreturn]] void refuse_value(const std::string& method, const std::string& key,
                               const std::string& value, const std::string& wanted) {
  throw Error(Code::InvalidArgument, method + ": " + key + "=" + value + " is not " + wanted);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

double SpecParameters::get_double(const std::string& key, double default_value, double minimum,
                                  double maximum) {
  known_.push_back(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return default_value;
  double value = 0;
  // Written so that NaN, which from_chars reads, is out of range too.
  if (!parse(found->second, value) || !(value >= minimum && value <= maximum)) {
    refuse_value(method_, key, found->second,
                 "a number from " + number_text(minimum) + " to " + number_text(maximum));
  }
  return value;
}

std::int64_t SpecParameters::get_integer(const std::string& key, std::int64_t default_value,
                                         std::int64_t minimum, std::int64_t maximum) {
  known_.push_back(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return default_value;
  std::int64_t value = 0;
  if (!parse(found->second, value) || value < minimum || value > maximum) {
    refuse_value(method_, key, found->second,
                 "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return value;
}

std::string SpecParameters::get_choice(const std::string& key, const std::string& default_value,
                                       const std::vector<std::string>& choices) {
  known_.push_back(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return default_value;
  if (std::find(choices.begin(), choices.end(), found->second) == choices.end()) {
    refuse_value(method_, key, found->second,
                 "one of " + joined(choices) + compressors::suggestion(found->second, choices));
  }
  return found->second;
}

void SpecParameters::finish() const {
  for (const auto& [key, value] : values_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (known_.empty()) {
      throw Error(Code::InvalidArgument,
                  method_ + " has no parameters; remove '" + key + "=" + value + "'");
    }
    throw Error(Code::InvalidArgument, method_ + " has no parameter '" + key + "'; it has " +
                                           joined(known_) + compressors::suggestion(key, known_));
  }
}

}  // namespace tersum
