// Collectives on device memory through pinned host memory, for ranks that cannot reach each other's
// GPUs: copied out in slices, exchanged by the engine as tensors in host memory are, copied in; all
// three at once.
#pragma once

#include <memory>

#include "src/device/device_collectives.hpp"

namespace tersum::runtime {

/// As open_device_collectives(), for any ranks. Between hosts with equally many ranks, more than
/// one, all-reduces go in three steps: inside the hosts over peer memory, then each rank with its
/// counterparts on the other hosts, then inside the hosts again.
std::shared_ptr<DeviceCollectives> open_staged_collectives(CommunicatorState& communicator);

}  // namespace tersum::runtime
