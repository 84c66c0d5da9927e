// Registers the method, makes it from a spec as TERSUM_COMPRESSOR would, and sends a few gradients
// through it. Exits with 0 if nothing is lost.
#include <cmath>
#include <cstdio>
#include <vector>

#include "threshold.hpp"

int main() {
  tersum::register_compressor(example::threshold_entry());
  const auto compressor = tersum::make_compressor("threshold:tau=0.5+ef");
  std::printf("%s\n", compressor->spec().c_str());

  const std::vector<float> gradient = {0.1f, -0.75f, 0.2f, 3.0f, -0.3f, 0.0f, 0.4f, -0.05f};
  const auto state = compressor->make_state(gradient.size());
  std::vector<std::byte> payload(compressor->max_payload_bytes(gradient.size()));
  std::vector<float> received(gradient.size(), 0.0f);
  const std::uint64_t steps = 20;
  for (std::uint64_t step = 0; step < steps; ++step) {
    tersum::SliceContext context;
    context.step = step;
    const std::size_t bytes = compressor->compress(gradient, context, state.get(), payload);
    compressor->decompress_add({payload.data(), bytes}, context, 1.0f, received);
    state->commit();
  }

  // Error feedback: what has not arrived yet is below tau in every element.
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float missing = static_cast<float>(steps) * gradient[i] - received[i];
    std::printf("element %zu: sent %g of %g\n", i, received[i],
                static_cast<float>(steps) * gradient[i]);
    if (!(std::fabs(missing) < 0.5001f)) return 1;
  }
  return 0;
}
