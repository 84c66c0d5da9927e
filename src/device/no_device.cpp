// Builds without CUDA: no memory is device memory, so nobody asks for collectives on it.
#include "src/device/device_collectives.hpp"
#include "src/device/device_gradients.hpp"
#include "src/device/hold.hpp"

namespace tersum::runtime {

bool is_device_memory(const void*) noexcept {
  return false;
}

bool is_known_device_memory(const void*) noexcept {
  return false;
}

std::shared_ptr<DevicePools> make_device_pools() {
  return nullptr;
}

std::shared_ptr<DeviceCollectives> open_device_collectives(CommunicatorState&) {
  throw Error(Code::Unsupported, "this build has no support for device memory");
}

void hold_until(Stream, WorkState&) {
  throw Error(Code::Unsupported, "this build has no support for device memory");
}

std::unique_ptr<DeviceGradients> open_device_gradients(Engine&, std::size_t) {
  throw Error(Code::Unsupported, "this build has no support for device memory");
}

}  // namespace tersum::runtime
