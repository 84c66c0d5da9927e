// Notices ranks that make different calls on device memory, where kernels cannot: once for each
// shape of call, beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "src/device/device_collectives.hpp"
#include "src/engine/engine.hpp"

namespace tersum::runtime {

/// For calls of one communicator in their order, under a lock of the owner's.
class ShapeCheck {
 public:
  ShapeCheck(Engine& engine, std::shared_ptr<Group> group, std::chrono::milliseconds timeout)
      : engine_(engine), group_(std::move(group)), timeout_(timeout) {}

  /// If no call with this signature has been seen here, compares it with what the other ranks do at
  /// the same place among such calls: an operation of the engine, which is not waited for. Done
  /// when all ranks have come; a difference ends the group with Mismatch on all ranks. Null if
  /// there is nothing to compare. Calls of two ranks only are none of its business. An all-to-all
  /// with counts is compared each time: no rank knows whether others have seen theirs.
  std::shared_ptr<WorkState> begin(const DeviceCall& call);

  /// The last one that was begun; null if none was.
  const std::shared_ptr<WorkState>& last() const noexcept { return last_; }

 private:
  Engine& engine_;
  const std::shared_ptr<Group> group_;
  const std::chrono::milliseconds timeout_;
  std::unordered_set<std::uint64_t> seen_;  // digests
  std::shared_ptr<WorkState> last_;
};

/// Throws Mismatch on all ranks unless everybody sends to each rank as many elements as that one
/// expects; returns when all ranks have come.
Task<> compare_counts(Operation& op, std::vector<std::size_t> send_counts,
                      std::vector<std::size_t> receive_counts);

}  // namespace tersum::runtime
