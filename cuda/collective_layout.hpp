// What the host and the kernels of the peer-memory collectives agree on: where things are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersum/types.hpp"

namespace tersum::gpu {

/// Most ranks that one group of peers has.
inline constexpr int kMaxPeers = 8;
/// Most blocks of one collective kernel.
inline constexpr int kMaxBlocks = 128;
/// Threads of a packet kernel's block; each moves 8 bytes at a time.
inline constexpr int kPacketThreads = 256;
/// Threads of each of the two roles (send, receive) in a push kernel's block.
inline constexpr int kRoleThreads = 256;
/// Bytes of data in one packet, and of the packet with its two flags.
inline constexpr std::size_t kPacketData = 8, kPacketBytes = 16;

/// A flag that one rank sets and another waits for; alone in its memory sector.
struct alignas(32) Flag {
  std::uint32_t value;
};

/// Head of each rank's arena, the memory that all peers see. Flags only ever grow (modulo 2^32) and
/// are written by one peer each, which the last index names.
struct Board {
  Flag present[kMaxPeers];              ///< packet operation that the peer has begun
  Flag full[kMaxBlocks][kMaxPeers];     ///< chunks that the peer has put into the queue here
  Flag emptied[kMaxBlocks][kMaxPeers];  ///< chunks that the peer has taken out of its queue
  Flag slice_full[kMaxPeers];           ///< slices that the peer has copied here
  Flag slice_emptied[kMaxPeers];        ///< slices that the peer has used
};

/// Counters of one rank, in its own device memory: they survive from one operation, or replay of a
/// graph, to the next.
struct Progress {
  std::uint32_t failed;               ///< Code of the first failure; everything ends at once then
  std::uint32_t packets[kMaxBlocks];  ///< tag of the last packet operation, the same in all entries
  std::uint32_t sent[kMaxBlocks][kMaxPeers];      ///< chunks put into a peer's queue
  std::uint32_t received[kMaxBlocks][kMaxPeers];  ///< chunks taken out of a peer's queue here
  std::uint32_t slices;                           ///< slices of all copy-engine operations so far
  std::uint32_t finished_blocks;                  ///< of the running slice
};

/// Between host and device, in page-locked memory.
struct Mailbox {
  std::uint32_t abort;  ///< set by the host: all kernels end
  std::uint32_t code;   ///< set by the device, last: Code of the failure
  std::int32_t peer;    ///< rank that was waited for, or -1
};

/// A group of peers, as its kernels see it. Passed by value.
struct Group {
  int rank;
  int size;
  std::byte* arena[kMaxPeers];
  Progress* progress;
  Mailbox* mailbox;
  std::uint64_t timeout_ns;      ///< 0: none
  bool early;                    ///< kernels are launched early
  std::uint64_t packets_offset;  ///< in the arena: [parity][phase][source] packets
  std::uint64_t packets_bytes;   ///< of one source
  std::uint64_t queue_offset;    ///< in the arena: [block][source][slot] bytes
  std::uint32_t slot_bytes;
  std::uint32_t slots;
  std::uint64_t slices_offset;  ///< in the arena: staging memory of copy-engine slices
};

/// A run of bytes in a tensor.
struct Range {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// How values of ranks become one.
struct Arithmetic {
  ReduceOp op;
  double pre_scale;   ///< of each value, for floating types
  double post_scale;  ///< of the result
};

/// Any collective in which everybody sends at most one run to each rank. Passed by value.
struct Exchange {
  const std::byte* input;
  std::byte* output;
  Range send[kMaxPeers];      ///< what of `input` goes to each rank; the own entry stays here
  Range place[kMaxPeers];     ///< where in `output` each rank's run goes
  bool combine;               ///< all runs become one, at place[rank]; all have its length
  bool overlaps;              ///< what is placed may lie where something is still to be sent from
  bool aligned;               ///< all addresses and offsets are multiples of 16 bytes
  std::uint32_t chunk_bytes;  ///< of a push: what one block moves at once, a multiple of 16
  std::uint32_t lead;  ///< of a push: chunks that a block may store ahead of their flags, 1 to 4
  Arithmetic arithmetic;
};

}  // namespace tersum::gpu
