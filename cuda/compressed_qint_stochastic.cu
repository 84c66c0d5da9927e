#include "cuda/compressed_qint.cuh"

namespace tersum::gpu {

void launch_tiles_qint_stochastic(const TileGroup& group, const TileCall& call, int bits,
                                  StreamView stream) {
  launch_tiles_qint<true>(group, call, bits, stream);
}

void load_tile_kernels_qint_stochastic() {
  load_tile_kernels_qint<true>();
}

}  // namespace tersum::gpu
