// What a fused all-reduce makes of payloads that no encoder makes. The other rank is memory of the
// test, which has sent everything before the kernel starts.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cuda/buffer.hpp"
#include "cuda/compressed.hpp"
#include "cuda/compressed_kernels.hpp"
#include "cuda/compressed_plan.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu::test {
namespace {

constexpr std::size_t kCount = 2 * kTile;  // a tile for each rank
constexpr int kBits = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CompressedPayload : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no GPU";
    load_tile_kernels_qint_nearest();
  }

  /// Code of the failure of rank 0 when rank 1 has sent tiles with these scales.
  static Code failure_of(float scale, float scale_of_sums) {
    TileGroup group{};
    group.size = 2;
    group.multiprocessors = 1;
    group.blocks = 1;
    group.queue_offset = kRunBytes;  // behind the flags of a block's warps
    group.timeout_ns = 2'000'000'000;
    const std::size_t bytes = group.runs_of(kTileWarps);
    const DeviceBuffer own(bytes), peer(bytes), tiles(sizeof(TileProgress)),
        progress(sizeof(Progress)), tensor(kCount * sizeof(float));
    const PinnedBuffer mailbox(sizeof(Mailbox));
    for (const DeviceBuffer* buffer : {&own, &peer, &tiles, &progress, &tensor}) {
      check(cudaMemset(buffer->data(), 0, buffer->bytes()), "cudaMemset");
    }
    group.arena[0] = own.data();
    group.arena[1] = peer.data();
    group.tiles = tiles.as<TileProgress>();
    group.progress = progress.as<Progress>();
    group.mailbox = mailbox.as<Mailbox>();
    send(group, Way::ToOwner, scale);
    send(group, Way::ToAll, scale_of_sums);

    const CompressedMethod method(make_compressor("qint:bits=4"));
    CompressedSlice slice;
    slice.input = tensor.as<float>();
    slice.output = tensor.as<float>();
    slice.count = kCount;
    const Stream stream;
    launch_tiles_qint_nearest(group, plan_tiles(method, slice, ReduceOp::Sum, 2), kBits, stream);
    stream.synchronize();
    const auto code = static_cast<Code>(group.mailbox->code);
    if (code != Code::Ok) {
      EXPECT_EQ(group.mailbox->peer, 1);
    }
    return code;
  }

 private:
  /// Rank 1's first tile is in rank 0's queue, and its flag says so.
  static void send(const TileGroup& group, Way way, float scale) {
    const std::uint32_t queue = group.queue(way, 0, 1), one = 1;
    std::byte* tile = group.arena[0] + group.runs_of(0) + queue * kRunSlots * kRunBytes;
    std::byte* flag = group.arena[0] + group.flags_of(0) + queue * sizeof(Flag);
    check(cudaMemcpy(tile + kTile * kBits / 8, &scale, sizeof(scale), cudaMemcpyDefault), "scale");
    check(cudaMemcpy(flag, &one, sizeof(one), cudaMemcpyDefault), "flag");
  }
};

TEST_F(CompressedPayload, TakesEveryScaleThatAnEncoderMakes) {
  for (const float scale : {0.0f, 1.0f, std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max(), std::nanf("")}) {
    EXPECT_EQ(failure_of(scale, 1.0f), Code::Ok) << scale;
    EXPECT_EQ(failure_of(1.0f, scale), Code::Ok) << scale;
  }
}

TEST_F(CompressedPayload, RefusesNegativeAndInfiniteScales) {
  for (const float scale : {-1.0f, -0.0f, kInfinity, -kInfinity, -std::nanf("")}) {
    EXPECT_EQ(failure_of(scale, 1.0f), Code::Protocol) << scale;
    EXPECT_EQ(failure_of(1.0f, scale), Code::Protocol) << scale;
  }
}

}  // namespace
}  // namespace tersum::gpu::test
