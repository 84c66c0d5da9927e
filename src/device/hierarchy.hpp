// All-reduce in three steps: inside each host over peer memory, across hosts through pinned memory,
// inside each host again.
#pragma once

#include <memory>

#include "cuda/collectives.hpp"
#include "cuda/event.hpp"
#include "src/device/peer_links.hpp"
#include "src/device/staged_call.hpp"
#include "src/device/staging_room.hpp"

namespace tersum {

class Session;

namespace runtime {

/// For groups of several hosts with equally many ranks, more than one. Each rank owns a share of
/// the tensor: it has its host's sum of it after the first step, and exchanges that with the ranks
/// that own the same share on the other hosts, its counterparts. So each host sends and receives
/// about as many bytes as one rank alone would. Slices overlap in all steps. Sums are taken inside
/// the hosts in rank order, then over the hosts in the order of their first ranks; all ranks get
/// the same bits. What fails between some ranks ends the whole group.
///
/// Sums of 16-bit floats are fp32 until the owner of a share between the hosts rounds them, once.
/// With g ranks on each host they take 2 g / 3 times fewer bytes between hosts than if every rank
/// sent its own: fp32 on one way and 16 bits on the other, of one tensor in place of g.
class Hierarchy {
 public:
  /// Null on all ranks if the group is not like that, or some host's GPUs cannot map each other's
  /// memory. Collective over `group`, blocks; for the device that is current now.
  static std::unique_ptr<Hierarchy> open(const Session& session,
                                         const std::shared_ptr<Group>& group, StagingRoom& room);

  /// True for all-reduces that lose nothing between the steps: all but averages of integers, and
  /// of 16-bit floats if slots are in device memory, where nobody adds fp32 to them.
  bool suits(const DeviceCall& call) const noexcept;

  /// The call's middle step, cut into slices.
  std::unique_ptr<StagedCall> make_call(StagingOwner& owner, const DeviceCall& call,
                                        Algorithm algorithm) const;

  /// Puts all steps into streams; what comes later in `stream` waits for them.
  void enqueue(StagingOwner& owner, const DeviceCall& call, StagedCall& staged,
               gpu::StreamView stream);

  /// Fails what is under way in the groups, and what comes. Engine's thread.
  void fail(Engine& engine, const Status& status) const;

  /// Ends the kernels inside the host, now and later. Any thread.
  void abort() noexcept { peers_.abort(); }
  Status status() const { return peers_.status(); }

  /// Takes the groups off the engine.
  void close(Engine& engine) const;

 private:
  Hierarchy(const Session& session, std::shared_ptr<Group> host,
            std::shared_ptr<Group> counterparts, StagingRoom& room);

  /// Elements of a slice of which every rank of the host owns a share.
  bool is_shared(const DeviceCall& call, const StagedSlice& slice) const noexcept;
  std::size_t unit() const noexcept;
  void reduce(const DeviceCall& call, const StagedSlice& slice, std::byte* share);
  void gather(const DeviceCall& call, const StagedSlice& slice);

  const std::shared_ptr<Group> host_;  // the ranks of this host
  const std::shared_ptr<Group> counterparts_;
  StagingRoom& room_;
  const std::shared_ptr<PeerLinks> links_;
  gpu::PeerCommunicator& peers_;
  gpu::Stream stream_{gpu::StreamPriority::High};
  gpu::Event ready_, reduced_, ended_;
  gpu::Event taken_out_[2];             // of the room's sums
  std::vector<gpu::Event> brought_in_;  // of the slices that are under way
};

}  // namespace runtime
}  // namespace tersum
