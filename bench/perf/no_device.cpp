#include "perf/device.hpp"

namespace tersum::perf {

std::unique_ptr<DeviceMemory> DeviceMemory::make(int, BufferRing&, BufferRing&) {
  throw Error(Code::Unsupported, "--device cuda: this build has no CUDA");
}

std::string device_name() {
  return "none";
}

}  // namespace tersum::perf
