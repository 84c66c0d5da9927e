// Reduction over ranks of what has been brought together in one GPU's memory.
#pragma once

#include <cstddef>

#include "cuda/collectives.hpp"
#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// One run of every rank: rank r's is at `others` + r * `stride_bytes`, but that of rank `own_rank`
/// at `own`.
struct RankRuns {
  const std::byte* others = nullptr;
  std::size_t stride_bytes = 0;
  const std::byte* own = nullptr;
  int own_rank = 0;
  int ranks = 1;
};

/// output[count] = post * op over ranks of (pre * run[count]), in rank order and the precision of
/// PeerCommunicator, whose values it gives bit for bit. Pointers are aligned for `dtype`; 16-byte
/// alignment is fastest. `output` overlaps no run. Does not block. Errors of arguments are thrown.
void reduce_runs(const RankRuns& runs, void* output, std::size_t count, DType dtype, ReduceOp op,
                 Scales scales, StreamView stream);

/// Loads the kernels of reduce_runs(), which may wait for all that runs on the device.
void load_reduce_runs();

}  // namespace tersum::gpu
