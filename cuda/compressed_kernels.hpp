// Launches of the kernels behind CompressedCommunicator. Each puts one all-reduce into `stream`,
// can be captured into a graph, neither blocks nor allocates, and throws Error if the launch is
// refused. The same on all ranks.
#pragma once

#include "cuda/compressed_layout.hpp"
#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// qint of 2 to 8 bits.
void launch_tiles_qint_nearest(const TileGroup& group, const TileCall& call, int bits,
                               StreamView stream);
void launch_tiles_qint_stochastic(const TileGroup& group, const TileCall& call, int bits,
                                  StreamView stream);
void launch_tiles_sign(const TileGroup& group, const TileCall& call, StreamView stream);
/// fp16 or bf16.
void launch_tiles_cast(const TileGroup& group, const TileCall& call, DType dtype,
                       StreamView stream);

/// Loads all of these kernels onto the current device. Otherwise CUDA loads each at its first
/// launch, which may wait for kernels that are running, and those may wait for peers.
void load_tile_kernels_qint_nearest();
void load_tile_kernels_qint_stochastic();
void load_tile_kernels_sign();
void load_tile_kernels_cast();

}  // namespace tersum::gpu
