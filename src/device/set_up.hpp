// What opening collectives on device memory needs of the engine: blobs of all ranks, on the host.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/group.hpp"

namespace tersum {

class Session;

namespace runtime {

/// Every rank's blob, by rank; all are of one size. One operation of `group`: collective, blocks,
/// and throws what that ends with.
std::vector<std::vector<std::byte>> exchange_blobs(const Session& session,
                                                   const std::shared_ptr<Group>& group,
                                                   std::span<const std::byte> own);

/// True on all ranks if `value` is true on all ranks. As exchange_blobs().
bool agree(const Session& session, const std::shared_ptr<Group>& group, bool value);

}  // namespace runtime
}  // namespace tersum
