// All-reduce through a gradient exchange with a compressor: time, bytes on the wire, error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "perf/options.hpp"
#include "perf/timing.hpp"

namespace tersum::perf {

struct CompressedResult {
  Timing timing;
  double wire_bytes = 0;  ///< sent by one rank in one call, mean over ranks
  double ratio = 0;       ///< bytes of a dense fp32 all-reduce / wire_bytes; 0: none are sent
  double relative_l2_error = 0;  ///< ||result - exact|| / ||exact||, of the first call
  double max_abs_error = 0;
  std::int64_t wrong = 0;  ///< as for other collectives, summed over ranks; see check_compressed()
};

/// Element `index` of the gradient of `rank`: about normally distributed, mean 0, variance 1.
double gradient_value(int rank, std::size_t index) noexcept;

/// Measures one size. Wrong are: elements that are not finite; every element, if ranks do not hold
/// the same bits; bytes written beside the gradient; and, for a contractive method whose payloads
/// are all added up (sparse merge), an error beyond the bound that it promises. Collective.
CompressedResult measure_compressed(Communicator& communicator, const Options& options,
                                    std::size_t elements);

}  // namespace tersum::perf
