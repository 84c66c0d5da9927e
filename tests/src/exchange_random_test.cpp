// Exchanges that nobody thought of, against the serial reference; see draw.hpp for more of them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/exchange_random.hpp"

namespace tersum::test {
namespace {

/// What the documentation says of which gradient gets what.
std::string spec_of(const Gradient& gradient, const ExchangeOptions& options) {
  if (gradient.compressor) return *gradient.compressor;
  const bool is_small =
      gradient.count * element_bytes(gradient.dtype) < *options.compress_min_bytes;
  if (!is_floating(gradient.dtype) || gradient.dtype == DType::Float64 || is_small) return "none";
  const std::string& rule = *options.compressor_rules;
  const std::string pattern = rule.substr(0, rule.find('=')),
                    spec = rule.substr(pattern.size() + 1);
  const bool matches = pattern == "*.bias" ? gradient.key.ends_with(".bias")
                                           : gradient.key.find("3.") != std::string::npos;
  return matches ? spec : *options.compressor;
}

void expect_reference(const std::vector<std::vector<Tensors>>& results, const Model& model,
                      const ExchangeOptions& options) {
  const int ranks = static_cast<int>(results.size());
  for (std::size_t g = 0; g < model.size(); ++g) {
    const std::string spec = spec_of(model[g], options);
    SCOPED_TRACE(model[g].key + ", " + std::to_string(model[g].count) + " " +
                 std::string(to_string(model[g].dtype)) + ", " + spec);
    SerialExchange serial(spec, model[g], ranks, *options.seed, options.op);
    for (std::size_t step = 0; step < results[0].size(); ++step) {
      const auto inputs = each_of(gradients_of_all(model, ranks, step), g);
      const Bytes expected = spec == "none"
                                 ? reduced(model[g].dtype, options.op, inputs, model[g].count)
                                 : serial.step(inputs);
      for (std::size_t r = 0; r < results.size(); ++r)
        ASSERT_TRUE(same_bytes(results[r][step][g], expected)) << "step " << step << ", rank " << r;
    }
  }
}

TEST(RandomExchange, EqualsTheSerialReferenceOnAllRanks) {
  for (std::uint64_t number = 0; number < 40; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    Draw draw(number);
    const auto [model, options, about] = draw_exchange(draw);
    SCOPED_TRACE(about);
    World world = make_world(1 + static_cast<int>(draw.below(5)));
    const auto results = train(world, model, options, 1 + draw.below(3), draw.one_in(2));
    expect_reference(results, model, options);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tersum::test
