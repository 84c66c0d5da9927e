// Kernels and memory between the ranks of one host, for the groups of a session.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/compressed.hpp"
#include "src/engine/group.hpp"

namespace tersum {

class Session;

namespace runtime {

/// Who puts work into streams.
enum class LinkUse : bool {
  Calls,  ///< callers, in the order in which it is to run: large tensors go by copy engines
  Engine  ///< the engine, when it has come so far: by kernels alone. Copies would wait in a queue
          ///< behind those of streams that wait for this very work (Work::wait_on()).
};

/// Kernels between the same ranks of one host, and the memory of theirs that all of them have
/// mapped.
struct PeerLinks {
  PeerLinks(const Session& session, const std::shared_ptr<Group>& group, LinkUse use,
            std::uint64_t number);

  /// Collective, blocks: makes `compressed` unless it is there already.
  void open_compressed(const Session& session, const std::shared_ptr<Group>& group);
  /// Collective, blocks: as if they had just been made, for another group of the same ranks.
  void renew(const Session& session, const std::shared_ptr<Group>& group);

  const std::vector<int> members;  ///< world ranks
  const int device;
  const LinkUse use;
  const std::uint64_t number;  ///< the same on all members, and given once in the job
  gpu::PeerCommunicator peers;
  std::unique_ptr<gpu::CompressedCommunicator> compressed;
};

/// Collective over `group`, blocks; for the device that is current now. Links that all ranks have
/// given back to their sessions, or new ones. They go back to the session with the last copy of the
/// pointer, which ends what still runs in them on this rank. Errors of PeerCommunicator.
///
/// Peers may write into a rank's memory until all of them have given it up, which the end of a
/// group on one rank says nothing about. So nothing is freed before the end of the session, but
/// used again when all ranks have given it back and meet for a new group.
std::shared_ptr<PeerLinks> take_peer_links(const Session& session,
                                           const std::shared_ptr<Group>& group, LinkUse use);

}  // namespace runtime
}  // namespace tersum
