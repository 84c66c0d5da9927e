#include "compressors/sparse_method.hpp"

#include "compressors/text.hpp"

namespace tersum::compressors {

KeepRule get_keep_rule(SpecParameters& parameters) {
  const bool both = parameters.has("ratio") && parameters.has("k");
  KeepRule rule;
  rule.ratio = parameters.get_double("ratio", 0.01, 1e-9, 1.0);
  rule.k = static_cast<std::size_t>(parameters.get_integer("k", 0, 1, std::int64_t{1} << 40));
  if (both) {
    throw Error(Code::InvalidArgument,
                "ratio and k both say how many elements are kept; give one of them");
  }
  return rule;
}

std::string to_string(const KeepRule& rule) {
  if (rule.k > 0) return "k=" + std::to_string(rule.k);
  return "ratio=" + number_text(rule.ratio);
}

}  // namespace tersum::compressors
