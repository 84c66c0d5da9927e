// Fits y = 3x + 1 on all ranks at once: tersum-run -n 4 -- quick_start
#include <array>
#include <cstdio>
#include <exception>

#include "tersum/tersum.hpp"

namespace {

void train() {
  // Who this process is comes from the launcher; without one it is a job of one rank.
  tersum::Communicator communicator = tersum::Communicator::connect();

  // Gradients are registered once, in the order in which the forward pass needs them.
  tersum::GradientExchange exchange(communicator,
                                    {{.key = "weight", .count = 1, .position = 0, .compressor = {}},
                                     {.key = "bias", .count = 1, .position = 1, .compressor = {}}});
  float weight = 0, bias = 0;
  for (int step = 0; step < 200; ++step) {
    // Every rank looks at samples of its own.
    std::array<float, 2> gradient{};
    for (int i = 0; i < 8; ++i) {
      const float x = static_cast<float>((step + 5 * i + 3 * communicator.rank()) % 21 - 10) / 10;
      const float error = (weight * x + bias) - (3 * x + 1);
      gradient[0] += error * x / 8;
      gradient[1] += error / 8;
    }

    // Hand each gradient over as soon as it is known, the last layer's first; then go on computing.
    exchange.submit("bias", &gradient[1]);
    exchange.submit("weight", &gradient[0]);

    // Wait for each where it is needed: it has become the average over all ranks.
    exchange.wait("weight");
    weight -= 0.5f * gradient[0];
    exchange.wait("bias");
    bias -= 0.5f * gradient[1];
    exchange.commit();
  }
  std::printf("rank %d of %d: y = %.3f x + %.3f\n", communicator.rank(), communicator.size(),
              weight, bias);
}

}  // namespace

int main() {
  try {
    train();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quick_start: %s\n", error.what());
    return 1;
  }
}
