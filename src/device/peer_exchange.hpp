// The way of an exchange's slices between the GPUs of one host: from memory to memory, without the
// CPU.
#pragma once

#include <map>
#include <memory>

#include "src/device/device_slice.hpp"
#include "src/device/host_peers.hpp"

namespace tersum::runtime {

/// Slices launch their kernels in turns (Turns). A failed round leaves turns that some ranks have
/// taken and others have not: abort() ends what waits, and the group of peers is made anew for the
/// next round.
class PeerExchange {
 public:
  /// Null on all ranks if they do not share a host, or their GPUs cannot map each other's memory.
  /// Collective over `group`, blocks; for the device that is current now.
  static std::unique_ptr<PeerExchange> open(Session& session, const std::shared_ptr<Group>& group);

  /// Combines the slice over all ranks, into its results. The same bits as through messages.
  /// [engine]
  Task<> exchange(DeviceSlice& slice);

  /// Ends all that runs and waits, now and later. [engine]
  void abort() noexcept { peers_.abort(); }
  bool aborted() const noexcept { return peers_.aborted(); }

  /// Collective, as open(): a new group in place of one that some rank has aborted. Nothing runs in
  /// it here any more.
  void renew() { peers_.connect(true); }

 private:
  PeerExchange(Session& session, std::shared_ptr<Group> group);

  void prepare(DeviceSlice& slice);
  void deliver(DeviceSlice& slice);
  void reduce_dense(DeviceSlice& slice);
  void reduce_compressed(DeviceSlice& slice);
  const gpu::CompressedMethod& method_of(const SliceJob& job);

  const std::shared_ptr<Group> group_;
  const int device_;
  gpu::Event reduced_;  // by the slice whose turn was last: kernels of all follow each other
  std::map<const Compressor*, gpu::CompressedMethod> methods_;
  HostPeers peers_;
};

}  // namespace tersum::runtime
