// Memory of other ranks of this host, mapped into this process.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tersum/types.hpp"

namespace tersum::gpu {

/// Gives every rank the blobs of all ranks, in rank order; all blobs of one call are of one size.
/// Blocks until all ranks have called it. Errors are thrown on through the caller.
using AllGatherBlobs =
    std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> own)>;

/// One buffer of every rank, as this rank sees it.
struct PeerBuffers {
  /// [size], by rank; the own entry is the own buffer. Null where that rank gave no memory.
  std::vector<std::byte*> data;
  /// [size]: bytes that each rank gave.
  std::vector<std::size_t> bytes;

  /// True if every rank's buffer can be reached from here.
  bool complete() const noexcept;
};

/// True if `data` lies in memory that other processes can map (plain cudaMalloc). False for memory
/// pools, virtual-memory allocations, managed and host memory. Does not block.
bool is_mappable(const void* data) noexcept;

/// The memory that the ranks of one host show each other. Every rank has one GPU; ranks may be
/// processes, or threads that drive several GPUs of one process: between processes memory travels
/// as CUDA IPC handles, inside a process as plain pointers with peer access switched on.
///
/// map() and close() are collective: all ranks call them in the same order, each on a thread of its
/// own. Mappings are cached: buffers of one allocation are opened once. Peers must have closed
/// their mappings before an owner frees its memory, which close() makes sure of.
class PeerMap {
 public:
  /// For the device that is current now. `all_gather` is kept and used by map() and close().
  /// Error Unsupported on every rank if two of the GPUs cannot map each other's memory,
  /// InvalidArgument if rank or size are out of range.
  PeerMap(int rank, int size, AllGatherBlobs all_gather);
  /// Closes what is still mapped, without waiting for the others.
  ~PeerMap();
  PeerMap(const PeerMap&) = delete;
  PeerMap& operator=(const PeerMap&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  /// True if `rank` runs in this process.
  bool is_local(int rank) const noexcept;

  /// Shows `own` to all ranks and maps theirs. Memory that is not mappable comes out as null on
  /// every other process: check complete(), the choice is the same on all ranks if all of them look
  /// at agree(). The memory must outlive close(). Blocks the host.
  PeerBuffers map(Buffer own);

  /// True if this rank's GPU is joined to all others' by NVLink, or is the same: links that keep
  /// native atomics, and what one instruction of a warp stores into 128 bytes, together.
  bool has_nvlink() const;

  /// True on all ranks if `value` is true on all ranks. Collective, blocks the host.
  bool agree(bool value);

  /// Ends all mappings on all ranks; after it every rank may free what it had shown. No work that
  /// uses them may be running. Blocks the host.
  void close();

  /// From now on the ranks meet by another function. Not while one of them is in a call.
  void meet_by(AllGatherBlobs all_gather);

  /// Allocations of other processes that are open now.
  std::size_t open_count() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersum::gpu
