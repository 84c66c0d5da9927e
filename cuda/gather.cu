#include "cuda/gather.hpp"

#include <cstring>
#include <string>

#include "cuda/codec.cuh"
#include "cuda/kernel_copy.hpp"
#include "cuda/kernels.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements per thread
constexpr std::size_t kTile = kThreads * kEach;

__device__ float widen(std::uint16_t x, bool brain) {
  return brain ? float_of_bfloat(x) : float_of_half(x);
}
__device__ std::uint16_t narrow(float x, bool brain) {
  return brain ? bfloat_of(x) : half_of(x);
}
/// As the CPU's: a NaN keeps its sign and what fits of its payload.
__device__ float narrow(double x) {
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(x));
  if ((bits & 0x7fffffffffffffffull) <= 0x7ff0000000000000ull) return __double2float_rn(x);
  return float_of(static_cast<std::uint32_t>(bits >> 32 & 0x80000000u) | 0x7fc00000u |
                  static_cast<std::uint32_t>(bits >> 29 & 0x3fffffu));
}
__device__ double widen(float x) {
  const std::uint64_t bits = bits_of(x);
  if (magnitude_of(x) <= kInfinityBits) return static_cast<double>(x);
  return __longlong_as_double(static_cast<long long>(
      (bits & 0x80000000u) << 32 | 0x7ff8000000000000ull | (bits & 0x3fffffu) << 29));
}
__device__ float scaled(float x, float scale) {
  return keep_nan(__fmul_rn(scale, x), x);
}

struct alignas(16) Floats {
  float x[4];
};
struct alignas(16) Halves {
  std::uint16_t x[8];
};
struct alignas(16) Doubles {
  double x[2];
};

__device__ float read(const std::byte* data, DType dtype, std::size_t i) {
  switch (dtype) {
    case DType::Float64:
      return narrow(reinterpret_cast<const double*>(data)[i]);
    case DType::Float32:
      return reinterpret_cast<const float*>(data)[i];
    default:
      return widen(reinterpret_cast<const std::uint16_t*>(data)[i], dtype == DType::BFloat16);
  }
}

__device__ void write(std::byte* data, DType dtype, std::size_t i, float x) {
  switch (dtype) {
    case DType::Float64:
      reinterpret_cast<double*>(data)[i] = widen(x);
      return;
    case DType::Float32:
      reinterpret_cast<float*>(data)[i] = x;
      return;
    default:
      reinterpret_cast<std::uint16_t*>(data)[i] = narrow(x, dtype == DType::BFloat16);
  }
}

/// Elements i .. i + 7, aligned to 16 bytes.
__device__ void read8(const std::byte* data, DType dtype, std::size_t i, float (&x)[kEach]) {
  if (dtype == DType::Float32) {
    const auto* v = reinterpret_cast<const Floats*>(data) + i / 4;
    const Floats two[2] = {v[0], v[1]};
#pragma unroll
    for (int c = 0; c < kEach; ++c) x[c] = two[c / 4].x[c % 4];
  } else if (dtype == DType::Float64) {
    const auto* v = reinterpret_cast<const Doubles*>(data) + i / 2;
    const Doubles four[4] = {v[0], v[1], v[2], v[3]};
#pragma unroll
    for (int c = 0; c < kEach; ++c) x[c] = narrow(four[c / 2].x[c % 2]);
  } else {
    const Halves v = reinterpret_cast<const Halves*>(data)[i / 8];
#pragma unroll
    for (int c = 0; c < kEach; ++c) x[c] = widen(v.x[c], dtype == DType::BFloat16);
  }
}

__device__ void write8(std::byte* data, DType dtype, std::size_t i, const float (&x)[kEach]) {
  if (dtype == DType::Float32) {
    auto* v = reinterpret_cast<Floats*>(data) + i / 4;
    v[0] = {{x[0], x[1], x[2], x[3]}};
    v[1] = {{x[4], x[5], x[6], x[7]}};
  } else if (dtype == DType::Float64) {
    auto* v = reinterpret_cast<Doubles*>(data) + i / 2;
#pragma unroll
    for (int c = 0; c < kEach; c += 2) v[c / 2] = {{widen(x[c]), widen(x[c + 1])}};
  } else {
    Halves v;
#pragma unroll
    for (int c = 0; c < kEach; ++c) v.x[c] = narrow(x[c], dtype == DType::BFloat16);
    reinterpret_cast<Halves*>(data)[i / 8] = v;
  }
}

/// The row that a tile belongs to: the last one that starts at or before it.
__device__ std::uint32_t row_of(const GatherPlan::Row* rows, std::uint32_t count,
                                std::uint32_t tile) {
  std::uint32_t low = 0;
  std::uint32_t high = count;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (rows[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// One tile of one tensor per block, to the bucket or from it.
template <bool kGather>
__global__ __launch_bounds__(kThreads) void move_tiles(const GatherPlan::Row* rows,
                                                       std::uint32_t row_count, float* bucket,
                                                       float scale) {
  const GatherPlan::Row row = rows[row_of(rows, row_count, blockIdx.x)];
  float* place = bucket + row.offset;
  const std::size_t start = (blockIdx.x - row.first_tile) * kTile;
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(row.data) | reinterpret_cast<std::uintptr_t>(place)) % 16 ==
      0;
  if (aligned && start + kTile <= row.count) {
    const std::size_t i = start + threadIdx.x * kEach;
    auto* side = reinterpret_cast<std::byte*>(place);
    float x[kEach];
    read8(kGather ? row.data : side, kGather ? row.dtype : DType::Float32, i, x);
#pragma unroll
    for (int c = 0; c < kEach; ++c) x[c] = scaled(x[c], scale);
    write8(kGather ? side : row.data, kGather ? DType::Float32 : row.dtype, i, x);
    return;
  }
  float x[kEach];
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    const std::size_t i = start + c * kThreads + threadIdx.x;
    x[c] = i >= row.count ? 0.0f : kGather ? read(row.data, row.dtype, i) : place[i];
  }
#pragma unroll
  for (int c = 0; c < kEach; ++c) {
    const std::size_t i = start + c * kThreads + threadIdx.x;
    if (i >= row.count) continue;
    if constexpr (kGather) place[i] = scaled(x[c], scale);
    if constexpr (!kGather) write(row.data, row.dtype, i, scaled(x[c], scale));
  }
}

void check_tensor(const BucketTensor& tensor) {
  if (!is_floating(tensor.dtype)) {
    throw Error(Code::InvalidArgument,
                "a bucket takes floating tensors, not " + std::string(to_string(tensor.dtype)));
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % element_bytes(tensor.dtype) != 0) {
    throw Error(Code::InvalidArgument, "a tensor is not aligned to its elements of " +
                                           std::string(to_string(tensor.dtype)));
  }
}

}  // namespace

GatherPlan::GatherPlan(std::span<const BucketTensor> tensors, StreamView stream) {
  std::size_t tiles = 0;
  for (const BucketTensor& tensor : tensors) {
    check_tensor(tensor);
    if (tensor.count == 0) continue;
    rows_.push_back({static_cast<std::byte*>(tensor.data), tensor.count, tensor.offset,
                     static_cast<std::uint32_t>(tiles), tensor.dtype});
    tiles += (tensor.count + kTile - 1) / kTile;
    count_ += tensor.count;
  }
  if (tiles >= std::size_t{1} << 31) {
    throw Error(Code::Unsupported,
                "a bucket of " + std::to_string(count_) + " elements is too large for one launch");
  }
  tiles_ = static_cast<std::uint32_t>(tiles);
  const std::size_t bytes = rows_.size() * sizeof(Row);
  table_ = DeviceBuffer(bytes);
  for (PinnedBuffer& staging : staging_) staging = PinnedBuffer(bytes);
  upload(stream);
}

void GatherPlan::rebind(std::span<void* const> data, StreamView stream) {
  std::size_t row = 0;
  if (data.size() != rows_.size()) {
    throw Error(Code::InvalidArgument, std::to_string(data.size()) + " addresses for " +
                                           std::to_string(rows_.size()) +
                                           " tensors that are not empty");
  }
  for (void* address : data) {
    const BucketTensor tensor{address, rows_[row].count, rows_[row].dtype, rows_[row].offset};
    check_tensor(tensor);
    rows_[row++].data = static_cast<std::byte*>(address);
  }
  upload(stream);
}

void GatherPlan::upload(StreamView stream) {
  if (rows_.empty()) return;
  uploaded_[turn_].synchronize();
  std::memcpy(staging_[turn_].data(), rows_.data(), staging_[turn_].bytes());
  copy_by_kernel(stream, table_.data(), staging_[turn_].data(), table_.bytes());
  uploaded_[turn_].record(stream);
  turn_ = 1 - turn_;
}

void GatherPlan::gather(StreamView stream, float* bucket, float scale) const {
  if (tiles_ == 0) return;
  move_tiles<true><<<tiles_, kThreads, 0, stream.get()>>>(
      table_.as<Row>(), static_cast<std::uint32_t>(rows_.size()), bucket, scale);
  check_launch("gather");
}

void GatherPlan::scatter(StreamView stream, const float* bucket, float scale) const {
  if (tiles_ == 0) return;
  move_tiles<false><<<tiles_, kThreads, 0, stream.get()>>>(table_.as<Row>(),
                                                           static_cast<std::uint32_t>(rows_.size()),
                                                           const_cast<float*>(bucket), scale);
  check_launch("scatter");
}

const void* gather_kernel() {
  return reinterpret_cast<const void*>(move_tiles<true>);
}

}  // namespace tersum::gpu
