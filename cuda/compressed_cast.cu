// Compressed all-reduce in fp16 or bf16 (compressors/cast.cpp): sums in fp32, rounded once.
#include "cuda/compressed_kernel.cuh"

namespace tersum::gpu {
namespace {

struct AsHalf {
  static __device__ std::uint32_t narrow(float low, float high) {
    return half_of(low) | static_cast<std::uint32_t>(half_of(high)) << 16;
  }
  static __device__ float widen(std::uint32_t bits) {
    return float_of_half(static_cast<std::uint16_t>(bits));
  }
};

struct AsBFloat {
  static __device__ std::uint32_t narrow(float low, float high) {
    return bfloat_of(low) | static_cast<std::uint32_t>(bfloat_of(high)) << 16;
  }
  static __device__ float widen(std::uint32_t bits) {
    return float_of_bfloat(static_cast<std::uint16_t>(bits));
  }
};

template <class Type>
struct Cast {
  using Rows = RowsOfFour;
  using Codes = Words<kPerLane>;
  static constexpr int kWords = Codes::kCount;
  static constexpr int kBlocks = 4;
  static constexpr Nan kNan = Nan::Kept;

  struct Coded {
    std::uint32_t words[kWords];
  };

  struct Context {
    __device__ explicit Context(const TileCall&) {}
    __device__ void finish(const TileCall&, std::uint32_t) const {}
  };

  static __device__ Coded encode(float (&x)[kPerLane], const Tile&, const TileCall&, const Context&,
                                 std::uint32_t, bool keep_left) {
    Coded coded;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const std::uint32_t word = coded.words[i] = Type::narrow(x[2 * i], x[2 * i + 1]);
      if (keep_left) {
        x[2 * i] = left_over(x[2 * i], Type::widen(word & 0xffffu));
        x[2 * i + 1] = left_over(x[2 * i + 1], Type::widen(word >> 16));
      }
    }
    return coded;
  }

  static __device__ void store(const Coded& coded, const TileCall&, std::byte* slot) {
    Codes::store(coded.words, slot);
  }

  static __device__ Coded load(const TileCall&, const std::byte* slot) {
    Coded coded;
    Codes::load(coded.words, slot);
    return coded;
  }

  template <bool kAdd>
  static __device__ void decode(const Coded& coded, float (&x)[kPerLane]) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float value = Type::widen(coded.words[i / 2] >> (i % 2 * 16) & 0xffffu);
      x[i] = kAdd ? __fadd_rn(x[i], value) : value;
    }
  }

  static __device__ void keep_poison(const Coded&, float (&)[kPerLane]) {}
};

}  // namespace

void launch_tiles_cast(const TileGroup& group, const TileCall& call, DType dtype, int blocks,
                       StreamView stream) {
  if (dtype == DType::Float16) {
    launch_tiles<Cast<AsHalf>>(group, call, blocks, stream);
  } else {
    launch_tiles<Cast<AsBFloat>>(group, call, blocks, stream);
  }
}

void load_tile_kernels_cast() {
  load_kernel(all_reduce_tiles<Cast<AsHalf>>);
  load_kernel(all_reduce_tiles<Cast<AsBFloat>>);
}

}  // namespace tersum::gpu
