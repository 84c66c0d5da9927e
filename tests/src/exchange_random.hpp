// Random models and options for tests of the gradient exchange.
#pragma once

#include "conformance/draw.hpp"
#include "src/exchange_support.hpp"

namespace tersum::test {

/// Up to twelve gradients of all kinds and sizes.
inline Model draw_model(Draw& draw) {
  Model model;
  const bool one_dtype = draw.one_in(2);
  const DType common = draw.of({DType::Float32, DType::Float16, DType::BFloat16});
  for (std::size_t g = 0, all = 1 + draw.below(12); g < all; ++g) {
    const DType other = draw.of({DType::Float32, DType::Float16, DType::BFloat16, DType::Float64,
                                 DType::Int32, DType::Int8});
    const std::size_t count = draw.count_up_to(draw.one_in(4) ? 100'000 : 5'000, 512);
    model.push_back(gradient("layer" + std::to_string(g) + draw.of({".weight", ".bias"}), count,
                             one_dtype ? common : other, static_cast<int>(draw.below(5))));
    if (is_floating(model[g].dtype) && model[g].dtype != DType::Float64 && draw.one_in(4))
      model[g].compressor = draw_spec(draw);
  }
  return model;
}

inline ExchangeOptions draw_options(Draw& draw) {
  ExchangeOptions options;
  options.compressor = draw.one_in(4) ? "none" : draw_spec(draw);
  options.compressor_rules = draw.one_in(2) ? "*.bias=none" : "*3.*=" + draw_spec(draw);
  options.compress_min_bytes = draw.one_in(2) ? 0 : draw.size_up_to(10'000);
  options.bucket_bytes = draw.size_up_to(1 << 20);
  options.slice_bytes = 64 + draw.size_up_to(1 << 18);
  options.credit_bytes = draw.size_up_to(1 << 20);
  options.policy = draw.of({"priority", "fifo"});
  options.seed = draw.seed();
  options.op = draw.of({ReduceOp::Average, ReduceOp::Sum});
  return options;
}

struct DrawnExchange {
  Model model;
  ExchangeOptions options;
  std::string about;  ///< for messages
};

inline DrawnExchange draw_exchange(Draw& draw) {
  DrawnExchange drawn{draw_model(draw), draw_options(draw), {}};
  drawn.about = *drawn.options.compressor + ", " + *drawn.options.compressor_rules +
                ", slices of " + std::to_string(*drawn.options.slice_bytes);
  return drawn;
}

}  // namespace tersum::test
