// What opening collectives on device memory needs of the engine: blobs of all ranks, on the host.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/collectives.hpp"
#include "src/engine/operation.hpp"

namespace tersum {

class Session;

namespace runtime {

/// Runs `body` as one operation of `group`. All ranks give the same `count`, which is compared.
/// Collective, blocks, and throws what the operation ends with.
void run_operation(const Session& session, const std::shared_ptr<Group>& group, std::uint64_t count,
                   const Operation::Body& body);

/// Every rank's blob, by rank; all are of one size. As run_operation().
std::vector<std::vector<std::byte>> exchange_blobs(const Session& session,
                                                   const std::shared_ptr<Group>& group,
                                                   std::span<const std::byte> own);

/// True on all ranks if `value` is true on all ranks. As run_operation().
bool agree(const Session& session, const std::shared_ptr<Group>& group, bool value);

/// exchange_blobs() between the ranks of `group`, for what maps their memory.
gpu::AllGatherBlobs blobs_of(const Session& session, std::shared_ptr<Group> group);

/// Of groups of peers of this session.
gpu::PeerSettings peer_settings(const Session& session, bool copy_engines);

/// Where this rank is among the hosts of a group; group ranks, ascending.
struct HostLayout {
  std::vector<int> host;          ///< on this rank's host
  std::vector<int> counterparts;  ///< at this rank's position among those of each host
};

/// For groups of several hosts with equally many ranks, more than one; nothing for others.
std::optional<HostLayout> layout_of(const Session& session, const Group& group);

}  // namespace runtime
}  // namespace tersum
