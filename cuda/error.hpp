// CUDA's error codes as tersum::Error.
#pragma once

#include <cuda_runtime_api.h>

namespace tersum::gpu {

/// Throws if `code` is not cudaSuccess: Error OutOfMemory for cudaErrorMemoryAllocation, System for
/// all others. The message holds `what` (the call or the kernel), CUDA's text and CUDA's name of
/// the code. An error that does not stick to the context is taken off it, so that the next call
/// starts clean.
void check(cudaError_t code, const char* what);

/// check(cudaGetLastError(), kernel): to be called right after a launch. Finds launches that were
/// refused; what goes wrong while a kernel runs shows at a later call.
void check_launch(const char* kernel);

/// True if this process can use at least one GPU. Makes no context, never throws.
bool has_device() noexcept;

}  // namespace tersum::gpu
