// How the host plans compressed all-reduces. Pure: no CUDA calls.
#pragma once

#include <cstddef>

#include "cuda/compressed.hpp"
#include "cuda/compressed_layout.hpp"

namespace tersum::gpu {

/// Elements of each rank's share: the blocks of `block` elements, in order, shared out evenly.
/// begin[r] is the first element of share r, begin[ranks] is `count`.
void share_out(std::size_t count, std::size_t block, int ranks,
               std::uint64_t (&begin)[kMaxPeers + 1]) noexcept;

/// Elements that must stay in one share: those with a common scale.
std::size_t share_unit(const CompressedMethod& method) noexcept;

/// Error InvalidArgument unless the slice fits the method.
void check_slice(const CompressedMethod& method, const CompressedSlice& slice, ReduceOp op,
                 int ranks);

/// The call that carries out a slice by Form::Fused.
TileCall plan_tiles(const CompressedMethod& method, const CompressedSlice& slice, ReduceOp op,
                    int ranks);

}  // namespace tersum::gpu
