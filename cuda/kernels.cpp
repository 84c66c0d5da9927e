#include "cuda/kernels.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <set>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

constexpr auto kModules = {&cast_twin_kernel,       &divide_kernel,      &elias_fano_kernel,
                           &gather_kernel,          &kernel_copy_kernel, &qint_twin_kernel,
                           &randomk_twin_kernel,    &sign_twin_kernel,   &step_counter_kernel,
                           &topk_candidates_kernel, &topk_twin_kernel,   &twin_mask_kernel};

void load_module(const void* kernel) {
  static const auto get_module = driver_function<decltype(cuFuncGetModule)>("cuFuncGetModule");
  static const auto count_functions =
      driver_function<decltype(cuModuleGetFunctionCount), 12040>("cuModuleGetFunctionCount");
  static const auto enumerate =
      driver_function<decltype(cuModuleEnumerateFunctions), 12040>("cuModuleEnumerateFunctions");
  static const auto load = driver_function<decltype(cuFuncLoad), 12040>("cuFuncLoad");
  cudaFunction_t function = nullptr;
  check(cudaGetFuncBySymbol(&function, kernel), "cudaGetFuncBySymbol");
  if (!get_module || !count_functions || !enumerate || !load) return;  // loads when it is launched
  CUmodule module = nullptr;
  unsigned count = 0;
  if (get_module(&module, function) != CUDA_SUCCESS ||
      count_functions(&count, module) != CUDA_SUCCESS)
    return;
  std::vector<CUfunction> functions(count);
  if (enumerate(functions.data(), count, module) != CUDA_SUCCESS) return;
  for (CUfunction one : functions) load(one);
}

}  // namespace

void load_kernels() {
  static std::mutex mutex;
  static std::set<int> loaded;
  const std::lock_guard lock(mutex);
  const int device = current_device();
  if (loaded.contains(device)) return;
  for (const auto kernel_of : kModules) load_module(kernel_of());
  loaded.insert(device);
}

}  // namespace tersum::gpu
