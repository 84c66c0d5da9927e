// Packets: 8 bytes of data travel with two 4-byte flags in one 16-byte store. Halves of a packet
// may arrive on their own; each carries its flag. The fewest instructions, twice the bytes: for
// small tensors.
#include "cuda/collective_cell_launch.cuh"

namespace tersum::gpu {
namespace {

struct PacketCell {
  using Data = uint2;
  static constexpr unsigned kFewestThreads = 128, kThreads = 256;
  static constexpr int kSpans = 2;
  static constexpr std::uint32_t kVector = 8;
  static constexpr std::uint32_t kSpan = kPacketSpan;

  __host__ __device__ static const Inboxes& inboxes(const Group& group) { return group.packets; }

  /// Where this lane's data lie in a run.
  __device__ static std::uint32_t offset(std::uint32_t span) {
    return span * kSpan + threadIdx.x % 32 * 8;
  }

  template <class T, Vectors kVectors>
  __device__ static Data load(const std::byte* from, std::uint32_t span, bool aligned,
                              std::uint32_t bytes) {
    const std::uint32_t at = offset(span);
    return at < bytes ? load_elements<T, Data, kVectors>(from + at, aligned, bytes - at) : Data{};
  }

  template <class T, Vectors kVectors>
  __device__ static void store(std::byte* to, std::uint32_t span, const Data& data, bool aligned,
                               std::uint32_t bytes) {
    const std::uint32_t at = offset(span);
    if (at < bytes) store_elements<T, Data, kVectors>(to + at, data, aligned, bytes - at);
  }

  __device__ static Data choose(bool first, const Data& a, const Data& b) {
    return make_uint2(first ? a.x : b.x, first ? a.y : b.y);
  }

  __device__ static void send(std::byte* box, std::uint32_t span, const Data& data,
                              std::uint32_t tag, std::uint32_t bytes) {
    const std::uint32_t at = offset(span);
    if (at < bytes) store_volatile(box + 2 * at, make_uint4(data.x, tag, data.y, tag));
  }

  __device__ static bool await(Watch& watch, int peer, const std::byte* box, std::uint32_t span,
                               std::uint32_t tag, std::uint32_t bytes, Data& data) {
    const std::uint32_t at = offset(span);
    if (at >= bytes) return true;
    return watch.wait(peer, [&] {
      const uint4 packet = load_volatile(box + 2 * at);
      data = make_uint2(packet.x, packet.z);
      return packet.y == tag && packet.w == tag;
    });
  }
};

}  // namespace

void launch_packets(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) {
  launch_cells<PacketCell>(group, exchange, dtype, stream);
}

void launch_packets_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                             StreamView stream) {
  launch_cells_two_shot<PacketCell>(group, exchange, dtype, stream);
}

void load_packet_kernels() {
  load_cell_kernels<PacketCell>();
}

}  // namespace tersum::gpu
