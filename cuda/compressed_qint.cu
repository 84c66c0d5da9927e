#include "cuda/compressed_qint.cuh"

namespace tersum::gpu {

void launch_tiles_qint_nearest(const TileGroup& group, const TileCall& call, int bits,
                               StreamView stream) {
  launch_tiles_qint<false>(group, call, bits, stream);
}

void load_tile_kernels_qint_nearest() {
  load_tile_kernels_qint<false>();
}

}  // namespace tersum::gpu
