#include "compressors/rules.hpp"

#include "compressors/text.hpp"

namespace tersum::compressors {
namespace {

bool compressible(DType dtype) noexcept {
  return dtype == DType::Float16 || dtype == DType::BFloat16 || dtype == DType::Float32;
}

[[noreturn]] void refuse_rule(std::size_t number, std::string_view rule, const std::string& what) {
  throw Error(Code::InvalidArgument, "compressor rule " + std::to_string(number) + " '" +
                                         std::string(rule) + "': " + what);
}

}  // namespace

CompressorRules::CompressorRules(std::string default_spec, std::string rules, std::size_t min_bytes)
    : none_(make_compressor("none")),
      default_(make_compressor(default_spec)),
      min_bytes_(min_bytes) {
  std::size_t number = 0;
  for (const std::string_view rule : split(rules, ';')) {
    if (rule.empty()) continue;  // a trailing ';' is fine
    ++number;
    const std::size_t equals = rule.find('=');
    const std::string glob(trim(rule.substr(0, equals)));
    if (equals == std::string_view::npos || glob.empty()) {
      refuse_rule(number, rule, "write name=compressor, as in '*.bias=none'");
    }
    try {
      rules_.push_back({glob, make_compressor(trim(rule.substr(equals + 1)))});
    } catch (const Error& error) {
      refuse_rule(number, rule, error.status().message());
    }
  }
}

std::shared_ptr<const Compressor> CompressorRules::choose(
    std::string_view key, std::size_t count, DType dtype,
    const std::optional<std::string>& explicit_spec) const {
  if (explicit_spec) {
    std::shared_ptr<const Compressor> chosen;
    try {
      chosen = make_compressor(*explicit_spec);
    } catch (const Error& error) {
      throw Error(error.code(), "gradient '" + std::string(key) + "': " + error.status().message());
    }
    if (!compressible(dtype) && chosen->spec() != none_->spec()) {
      throw Error(Code::InvalidArgument, "gradient '" + std::string(key) + "' is " +
                                             std::string(to_string(dtype)) +
                                             " and cannot be compressed with '" + *explicit_spec +
                                             "'; use 'none', or make it fp32, fp16 or bf16");
    }
    return chosen;
  }
  if (!compressible(dtype) || count * element_bytes(dtype) < min_bytes_) return none_;
  for (const Rule& rule : rules_) {
    if (glob_match(rule.glob, key)) return rule.compressor;
  }
  return default_;
}

std::string CompressorRules::rules() const {
  std::string text;
  for (const Rule& rule : rules_) {
    text += (text.empty() ? "" : "; ") + rule.glob + "=" + rule.compressor->spec();
  }
  return text;
}

}  // namespace tersum::compressors
