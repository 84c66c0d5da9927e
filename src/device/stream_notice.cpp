#include "src/device/stream_notice.hpp"

#include <string>

#include "cuda/error.hpp"

namespace tersum::runtime {
namespace {

void CUDART_CB call(cudaStream_t, cudaError_t code, void* data) {
  auto& listener = *static_cast<StreamListener*>(data);
  if (code == cudaSuccess) return listener.on_reached(Status::ok());
  listener.on_reached(Status(Code::System, std::string("the device has failed: ") +
                                               cudaGetErrorString(code) + " (" +
                                               cudaGetErrorName(code) + ")"));
}

}  // namespace

void notify(gpu::StreamView stream, StreamListener& listener) {
  // Not cudaLaunchHostFunc: that is silent when the device has failed.
  gpu::check(cudaStreamAddCallback(stream.get(), call, &listener, 0), "cudaStreamAddCallback");
}

}  // namespace tersum::runtime
