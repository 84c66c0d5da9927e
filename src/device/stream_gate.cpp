#include "src/device/stream_gate.hpp"

#include <atomic>
#include <string>

#include "cuda/driver.hpp"
#include "tersum/error.hpp"

namespace tersum::runtime {
namespace {

using WaitValue = decltype(cuStreamWaitValue32);

WaitValue* wait_value() {
  static WaitValue* const function = gpu::driver_function<WaitValue>("cuStreamWaitValue32");
  return function;
}

}  // namespace

StreamGate::StreamGate() : word_(sizeof(Ticket)) {
  if (wait_value() == nullptr)
    throw Error(Code::Unsupported, "the CUDA driver cannot let a stream wait for memory");
}

StreamGate::~StreamGate() {
  open_all();
}

StreamGate::Ticket StreamGate::take() {
  const std::lock_guard lock(mutex_);
  opened_.push_back(false);
  return ++taken_;
}

void StreamGate::hold(gpu::StreamView stream, Ticket ticket) const {
  const auto address = reinterpret_cast<CUdeviceptr>(word_.data());  // the same on host and device
  const CUresult result = wait_value()(stream.get(), address, ticket, CU_STREAM_WAIT_VALUE_GEQ);
  if (result != CUDA_SUCCESS)
    throw Error(Code::System, "cuStreamWaitValue32 failed (CUDA " + std::to_string(result) + ")");
}

void StreamGate::open(Ticket ticket) noexcept {
  const std::lock_guard lock(mutex_);
  const Ticket index = ticket - passed_ - 1;
  if (index >= opened_.size()) return;  // open_all() has been there
  opened_[index] = true;
  const Ticket before = passed_;
  for (; !opened_.empty() && opened_.front(); ++passed_) opened_.pop_front();
  if (passed_ != before) publish(passed_);
}

void StreamGate::open_all() noexcept {
  const std::lock_guard lock(mutex_);
  opened_.clear();
  passed_ = taken_;
  publish(passed_);
}

void StreamGate::publish(Ticket ticket) noexcept {
  std::atomic_ref(*word_.as<Ticket>()).store(ticket, std::memory_order_release);
}

}  // namespace tersum::runtime
