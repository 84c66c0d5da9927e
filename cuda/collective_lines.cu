// Lines: 120 bytes of data and an 8-byte flag in each 128 bytes, which eight threads store with one
// instruction. For tensors that are too large for packets, whose flags double the bytes.
//
// NVLink and the memory of a GPU keep a line that is stored, or loaded, by one instruction of a
// warp together: whoever sees its flag sees its data. PCIe does not, so that lines are only for
// GPUs with native atomics between them, which is how CUDA tells NVLink (cudaDevP2PAttr...).
//
// Eight lanes carry 240 bytes of the tensor in two lines: lanes 0 to 6 hold vectors 0 to 6 for the
// first and 8 to 14 for the second; lane 7 holds vector 7, half of it beside either flag.
#include "cuda/collective_cell_launch.cuh"

namespace tersum::gpu {
namespace {

struct LineData {
  uint4 first, second;
};

struct LineCell {
  using Data = LineData;
  static constexpr unsigned kFewestThreads = 128, kThreads = 512;
  static constexpr int kSpans = 2;
  static constexpr std::uint32_t kVector = 16;
  static constexpr std::uint32_t kSpan = kLineSpan, kUnit = kSpan / 4;

  __host__ __device__ static const Inboxes& inboxes(const Group& group) { return group.lines; }

  __device__ static std::uint32_t lane() { return threadIdx.x % 8; }
  __device__ static bool has_flag() { return lane() == 7; }

  /// Where this lane's first vector lies in a run.
  __device__ static std::uint32_t offset(std::uint32_t span) {
    return span * kSpan + threadIdx.x % 32 / 8 * kUnit + lane() * 16;
  }

  __device__ static std::uint32_t wire_offset(std::uint32_t span) {
    return span * kLineSpanWire + threadIdx.x % 32 / 8 * 256 + lane() * 16;
  }

  /// True if this lane's unit holds data.
  __device__ static bool is_used(std::uint32_t span, std::uint32_t bytes) {
    return span * kSpan + threadIdx.x % 32 / 8 * kUnit < bytes;
  }

  template <class T, Vectors kVectors>
  __device__ static Data load(const std::byte* from, std::uint32_t span, bool aligned,
                              std::uint32_t bytes) {
    const std::uint32_t at = offset(span);
    Data data{};
    if (at < bytes) data.first = load_elements<T, uint4, kVectors>(from + at, aligned, bytes - at);
    if (!has_flag() && at + 128 < bytes) {
      data.second = load_elements<T, uint4, kVectors>(from + at + 128, aligned, bytes - at - 128);
    }
    return data;
  }

  template <class T, Vectors kVectors>
  __device__ static void store(std::byte* to, std::uint32_t span, const Data& data, bool aligned,
                               std::uint32_t bytes) {
    const std::uint32_t at = offset(span);
    if (at < bytes) store_elements<T, uint4, kVectors>(to + at, data.first, aligned, bytes - at);
    if (!has_flag() && at + 128 < bytes) {
      store_elements<T, uint4, kVectors>(to + at + 128, data.second, aligned, bytes - at - 128);
    }
  }

  __device__ static Data choose(bool first, const Data& a, const Data& b) {
    return {first ? a.first : b.first, first ? a.second : b.second};
  }

  __device__ static void send(std::byte* box, std::uint32_t span, const Data& data,
                              std::uint32_t tag, std::uint32_t bytes) {
    if (!is_used(span, bytes)) return;
    std::byte* to = box + wire_offset(span);
    const uint4& v = data.first;
    store_volatile(to, has_flag() ? make_uint4(v.x, v.y, tag, tag) : v);
    store_volatile(to + 128, has_flag() ? make_uint4(v.z, v.w, tag, tag) : data.second);
  }

  __device__ static bool await(Watch& watch, int peer, const std::byte* box, std::uint32_t span,
                               std::uint32_t tag, std::uint32_t bytes, Data& data) {
    const std::byte* from = box + wire_offset(span);
    const bool needed = is_used(span, bytes);
    uint4 first{}, second{};
    const bool came = watch.wait_together(peer, [&] {
      if (!needed) return true;
      first = load_volatile(from);
      second = load_volatile(from + 128);
      return !has_flag() ||
             (first.z == tag && first.w == tag && second.z == tag && second.w == tag);
    });
    data.first = has_flag() ? make_uint4(first.x, first.y, second.x, second.y) : first;
    data.second = second;
    return came;
  }
};

}  // namespace

void launch_lines(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) {
  launch_cells<LineCell>(group, exchange, dtype, stream);
}

void launch_lines_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                           StreamView stream) {
  launch_cells_two_shot<LineCell>(group, exchange, dtype, stream);
}

void load_line_kernels() {
  load_cell_kernels<LineCell>();
}

}  // namespace tersum::gpu
