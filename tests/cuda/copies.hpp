// Copies and fills that are over when they return, for streams that do not wait for others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/error.hpp"

namespace tersum::gpu::test {

/// cudaMemcpy() alone returns while bytes from pageable memory are still on their way.
inline void copy_now(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

inline void fill_now(void* memory, std::byte value, std::size_t bytes) {
  check(cudaMemset(memory, static_cast<int>(value), bytes), "cudaMemset");
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

}  // namespace tersum::gpu::test
