#include "cuda/stream.hpp"

#include <utility>

#include "cuda/error.hpp"
#include "cuda/event.hpp"

namespace tersum::gpu {

void StreamView::wait(const Event& event) const {
  check(cudaStreamWaitEvent(stream_, event.get(), 0), "cudaStreamWaitEvent");
}

void StreamView::synchronize() const {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

bool StreamView::is_done() const {
  const cudaError_t code = cudaStreamQuery(stream_);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(code, "cudaStreamQuery");
  return true;
}

bool StreamView::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Stream::Stream(StreamPriority priority) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                     priority == StreamPriority::High ? greatest : least),
        "cudaStreamCreateWithPriority");
}

Stream::Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

Stream::~Stream() {
  if (stream_ != nullptr && cudaStreamDestroy(stream_) != cudaSuccess) cudaGetLastError();
}

}  // namespace tersum::gpu
