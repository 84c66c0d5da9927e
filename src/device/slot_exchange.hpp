// The middle of a staged call whose slots are device memory: the transport moves them as they are,
// and kernels add.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/stream.hpp"
#include "src/device/device_collectives.hpp"
#include "src/device/staging_lane.hpp"
#include "src/engine/operation.hpp"

namespace tersum {

class Session;

namespace runtime {

class StagingOwner;
struct StagedSlice;

/// Works for any group that uses the lanes it was made for. All sums are in rank order.
class SlotExchange {
 public:
  /// Registers the lanes' memory with the transport, once and for all, and sends through all slots,
  /// so that the network has what it needs before anything waits. Collective over `group`, blocks.
  /// Error Unsupported on all ranks if some transport cannot move device memory.
  SlotExchange(const Session& session, const std::shared_ptr<Group>& group, StagingOwner& owner,
               int device);

  /// What the ranks do with one slice between copying out and copying in.
  Task<> run(Operation& op, const DeviceCall& call, const StagedSlice& slice);

 private:
  struct Message {
    Buffer buffer;
    bool travels = false;
  };
  using Messages = std::vector<Message>;  // [ranks]

  Task<> move(Operation& op, std::uint64_t hop, const Messages& sends, const Messages& receives);
  Task<> reduce(Operation& op, const DeviceCall& call, const StagedSlice& slice);
  Task<> gather(Operation& op, const DeviceCall& call, const StagedSlice& slice);
  Task<> broadcast(Operation& op, const DeviceCall& call, const StagedSlice& slice);
  Task<> reach(Operation& op);
  Task<> warm_up(Operation& op);
  Buffer inbox_part(const StagedSlice& slice, std::size_t offset, std::size_t bytes) const noexcept;

  StagingOwner& owner_;
  gpu::Stream stream_{gpu::StreamPriority::High};
  std::size_t inbox_bytes_;  // for one slice
  gpu::DeviceBuffer inbox_;  // what others send for this rank to add
  void* inbox_registration_ = nullptr;
};

}  // namespace runtime
}  // namespace tersum
