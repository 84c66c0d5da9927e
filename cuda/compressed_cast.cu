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

template <class Type, bool kWithFeedback>
struct Cast {
  using Rows = RowsOfFour;
  using Codes = Words<kPerLane>;
  static constexpr int kWords = Codes::kCount;
  static constexpr bool kFeedback = kWithFeedback;
  static constexpr int kBlocks = kWithFeedback ? 2 : 3;  // on a multiprocessor at once
  static constexpr Nan kNan = Nan::Kept;

  struct Coded {
    std::uint32_t words[kWords];
  };

  struct Context {
    __device__ explicit Context(const TileCall&) {}
    __device__ void finish(const TileCall&, std::uint32_t) const {}
  };

  static __device__ Coded encode(float (&x)[kPerLane], float (&value)[kPerLane], const Tile&,
                                 const TileCall&, const Context&, std::uint32_t) {
    Coded coded;
#pragma unroll
    for (int i = 0; i < kWords; ++i) coded.words[i] = Type::narrow(x[2 * i], x[2 * i + 1]);
    decode<false>(coded, value);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (kFeedback) x[i] = left_over(x[i], value[i]);
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

  static __device__ bool is_valid(const Coded&) {
    return true;
  }
  static __device__ void keep_poison(const Coded&, float (&)[kPerLane]) {}
};

/// Calls function.template operator()<Codec>().
template <class Function>
void with_cast(DType dtype, bool feedback, const Function& function) {
  if (dtype == DType::Float16) {
    feedback ? function.template operator()<Cast<AsHalf, true>>()
             : function.template operator()<Cast<AsHalf, false>>();
  } else {
    feedback ? function.template operator()<Cast<AsBFloat, true>>()
             : function.template operator()<Cast<AsBFloat, false>>();
  }
}

}  // namespace

void launch_tiles_cast(const TileGroup& group, const TileCall& call, DType dtype,
                       StreamView stream) {
  with_cast(dtype, has_feedback(call),
            [&]<class Codec>() { launch_tiles<Codec>(group, call, stream); });
}

void load_tile_kernels_cast() {
  for (const DType dtype : {DType::Float16, DType::BFloat16}) {
    for (const bool feedback : {false, true}) {
      with_cast(dtype, feedback, []<class Codec>() { load_tile_kernel<Codec>(); });
    }
  }
}

}  // namespace tersum::gpu
