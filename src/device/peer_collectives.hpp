// Collectives between the GPUs of one host: straight from the caller's thread into the caller's
// stream, past the engine.
#pragma once

#include <memory>

#include "src/device/device_collectives.hpp"

namespace tersum::runtime {

/// As open_device_collectives(), for ranks of one host. Error Unsupported on every rank if their
/// GPUs cannot map each other's memory, or are too many.
std::shared_ptr<DeviceCollectives> open_peer_collectives(CommunicatorState& communicator);

}  // namespace tersum::runtime
