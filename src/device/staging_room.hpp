// The memory through which one group's calls leave a GPU and come back.
#pragma once

#include <cstddef>

#include "cuda/buffer.hpp"
#include "src/device/staging_lane.hpp"

namespace tersum::runtime {

struct StagingRoom {
  static constexpr std::size_t kSlotBytes = std::size_t{4} << 20;
  static constexpr int kSlots =
      8;  // of each lane: enough for what copies, wire and sums have in hand

  /// For the device that is current now. Allocates.
  explicit StagingRoom(SlotMemory slot_memory)
      : device(gpu::current_device()),
        memory(slot_memory),
        out(memory, kSlotBytes, kSlots),
        in(memory, kSlotBytes, kSlots) {}

  /// Makes room for sums of 16-bit floats over the `ranks` of a host. Allocates if need be.
  void widen(int ranks) {
    const std::size_t bytes = kSlotBytes * static_cast<std::size_t>(ranks);
    if (widened.bytes() < bytes) widened = gpu::DeviceBuffer(bytes);
    if (sums.bytes() == 0) sums = gpu::DeviceBuffer(2 * kSlotBytes);
  }

  const int device;
  const SlotMemory memory;
  OutLane out;
  InLane in;
  gpu::DeviceBuffer widened;  ///< a slice of 16-bit floats as fp32
  gpu::DeviceBuffer sums;     ///< this rank's shares of two such slices
};

}  // namespace tersum::runtime
