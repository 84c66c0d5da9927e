// The GPUs of this host, as the CUDA runtime sees them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tersum::gpu {

/// One GPU that this process may use (CUDA_VISIBLE_DEVICES applies).
struct Device {
  int index = 0;
  std::string name;
  std::size_t memory_bytes = 0;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::vector<int> peers;  ///< indices of the devices whose memory it can map
};

/// All of them; empty on a machine without a GPU or without its driver. Makes no CUDA context and
/// does not change the current device. Error System if the driver is there but cannot be asked.
std::vector<Device> devices();

/// "13.0": the runtime that this library was built with.
std::string runtime_version();

/// "13.0": the newest runtime that the driver supports; empty without a driver.
std::string driver_version();

}  // namespace tersum::gpu
