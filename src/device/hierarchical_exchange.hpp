// The way of an exchange's slices between hosts with several GPUs each: in three steps.
#pragma once

#include <memory>
#include <vector>

#include "cuda/event.hpp"
#include "src/device/device_slice.hpp"
#include "src/device/host_peers.hpp"
#include "src/device/set_up.hpp"

namespace tersum::runtime {

/// For groups of several hosts with equally many ranks, more than one. Each rank owns a share of
/// every slice: whole blocks of the compressor, or whole gradients where these are not cut. First
/// the owners get their host's sum or average of their shares, over peer memory. Then each
/// exchanges its share with those that own it on the other hosts, its counterparts, as messages:
/// compressed as if hosts were ranks, with residuals of what a host has not sent. In the end shares
/// are gathered inside the hosts. So a host sends as many bytes as one rank alone would.
///
/// Results are those of an exchange between as many ranks as there are hosts, whose gradients are
/// the hosts' sums or averages in fp32, taken in rank order; random draws that ranks make for
/// themselves are those of the owners. All ranks get the same bits.
///
/// Kernels inside a host are launched in turns (Turns), two for each slice.
class HierarchicalExchange {
 public:
  /// Null on all ranks if the group is not like that, or some host's GPUs cannot map each other's
  /// memory. Collective over `group`, blocks; for the device that is current now.
  static std::unique_ptr<HierarchicalExchange> open(Session& session,
                                                    const std::shared_ptr<Group>& group);
  ~HierarchicalExchange();

  /// True but for averages of integers, which would be rounded in each step. Sums of 16-bit floats
  /// that are not compressed are fp32 until the owner of a share between the hosts rounds them.
  static bool suits(const SliceJob& job) noexcept;

  /// Of the middle step, as message_bytes().
  std::size_t bytes_of_messages(const SliceJob& job) const;

  /// Combines the slice over all ranks, into its results. [engine]
  Task<> exchange(ExchangeDevice& device, Operation& op, const SliceJob& job);

  /// Ends all that runs and waits inside the host, now and later. [engine]
  void abort() noexcept { peers_.abort(); }
  bool aborted() const noexcept { return peers_.aborted(); }

  /// Collective, as open(): new groups in place of those that some rank has aborted. Nothing runs
  /// in them here any more.
  void renew() { peers_.connect(false); }

 private:
  /// Contiguous elements of a slice.
  struct Share {
    std::vector<Piece> pieces;
    std::size_t begin = 0, count = 0;
  };

  HierarchicalExchange(Session& session, HostLayout layout, std::shared_ptr<Group> host);

  /// By rank on the host.
  std::vector<Share> shares_of(const SliceJob& job) const;
  const Share& own(const std::vector<Share>& shares) const;
  static bool go_together(const std::vector<Share>& shares);
  static std::byte* sums_of(DeviceSlice& slice);
  static std::byte* results_of(DeviceSlice& slice);
  static SliceJob job_of(const Share& share, const SliceJob& job);
  static SliceJob job_of(const Share& share, DeviceSlice& slice);
  /// Kernels on peer memory, in the slice's stream and behind those of the turn before.
  template <class Kernels>
  void launch(DeviceSlice& slice, const Kernels& kernels);
  Status outcome();
  Task<> end_turn(DeviceSlice& slice);
  void reduce(DeviceSlice& slice, const std::vector<Share>& shares);
  void gather(DeviceSlice& slice, const std::vector<Share>& shares);

  Session& session_;
  const HostLayout layout_;
  const std::shared_ptr<Group> host_;
  const int device_;
  gpu::Event done_;  // by the slice whose turn was last: kernels of all follow each other
  HostPeers peers_;
};

}  // namespace tersum::runtime
