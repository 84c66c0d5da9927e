// Training steps from a trace.
#pragma once

#include <string>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/stream.hpp"
#include "exchange/trace_file.hpp"
#include "tersum/gradient_exchange.hpp"

namespace tersum::replay {

/// Milliseconds, of the slowest rank; medians over the steps.
struct Result {
  std::string compressor;
  double iteration_ms = 0;  ///< backward and the next forward pass, exchange included
  double wire_bytes = 0;    ///< sent by one rank in a step, mean over ranks
  double bound_ms = 0;      ///< no schedule is faster with these bytes on this link; 0: not known
};

/// A model's gradients on this rank's GPU. A step is the backward pass of the trace, each gradient
/// submitted when it is made, and a forward pass of half the time, in which every layer waits for
/// its own gradient.
class Replay {
 public:
  /// `link_bytes_per_second` of one rank, for the bound; 0: not known.
  Replay(Communicator communicator, std::vector<TracedGradient> trace,
         double link_bytes_per_second);

  /// The same kernels without an exchange.
  double compute_ms(int steps);
  /// Collective.
  Result run(const std::string& compressor, int steps);

  std::size_t bytes() const noexcept { return elements_ * sizeof(float); }

 private:
  double step(GradientExchange* exchange);
  double median_of_slowest(std::vector<double> times);
  double bound_ms(double wire_ratio) const;
  void restore();

  Communicator communicator_;
  const std::vector<TracedGradient> trace_;
  const double link_;
  std::size_t elements_ = 0;
  gpu::Stream stream_;
  gpu::DeviceBuffer originals_, gradients_;
};

}  // namespace tersum::replay
