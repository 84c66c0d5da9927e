// Compressed all-reduces made of twins and dense collectives: what no single kernel does.
#pragma once

#include <cstddef>

#include "cuda/collectives.hpp"
#include "cuda/compressed.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// Workspace of the calls below. 0 for Form::Fused.
std::size_t composed_bytes(const CompressedMethod& method, std::size_t count, int ranks);

/// Carries out a checked slice by the method's form, which is not Form::Fused. Marks what it writes
/// into states.
void run_composed(PeerCommunicator& peers, const CompressedMethod& method,
                  const CompressedSlice& slice, ReduceOp op, StreamView stream);

}  // namespace tersum::gpu
