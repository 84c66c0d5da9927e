// The ranks of one host as the slices of an exchange meet there: their links, and their turns.
#pragma once

#include <memory>

#include "src/device/peer_links.hpp"
#include "src/device/turns.hpp"

namespace tersum::runtime {

/// Kernels between the ranks of a group, launched in turns. After a failure on any rank all of them
/// connect again.
class HostPeers {
 public:
  /// For the device that is current now.
  HostPeers(Session& session, std::shared_ptr<Group> group);

  /// Collective over the group, blocks: links for the kernels, and turns from the first one on.
  /// Nothing of this exchange runs any more. Errors of PeerCommunicator; it stays aborted then.
  void connect(bool compressed);

  /// Ends all that runs and waits, now and later, until it is connected again. [engine]
  void abort() noexcept;
  /// Any thread.
  bool aborted() const noexcept { return turns_.aborted(); }

  // Engine's thread. Links are there for who has a turn.
  Turns& turns() noexcept { return turns_; }
  gpu::PeerCommunicator& peers() noexcept { return links_->peers; }
  gpu::CompressedCommunicator& compressed() noexcept { return *links_->compressed; }

 private:
  Session& session_;
  const std::shared_ptr<Group> group_;
  const int device_;
  std::shared_ptr<PeerLinks> links_;  // engine's thread; null while it is being connected
  Turns turns_;
  bool ended_meanwhile_ = false;  // aborted while it was being connected
};

}  // namespace tersum::runtime
