// Which elements of a rank's tensors leave the device in a collective, and which come in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "src/device/device_collectives.hpp"

namespace tersum::runtime {

/// Elements of a tensor.
struct StagedRun {
  std::size_t offset = 0, count = 0;

  /// How many of `wanted` from the one at `begin` on there are.
  std::size_t part(std::size_t begin, std::size_t wanted) const noexcept {
    return std::min(wanted, count - std::min(count, begin));
  }
};

/// The runs that a call takes out of device memory here, and brings in. Where ranks have counts of
/// their own the run that stays on this rank has no elements: it does not leave the device.
struct StagedShape {
  std::vector<StagedRun> out, in;
  std::size_t most_runs = 1;  ///< of all ranks and both ways: the same everywhere
  std::size_t longest = 0;    ///< elements of a run; the same everywhere but in AllToAllV

  StagedShape(const DeviceCall& call, int rank, int size);
};

}  // namespace tersum::runtime
