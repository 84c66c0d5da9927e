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
/// Most slots of a queue.
inline constexpr int kMaxSlots = 64;
/// Threads of each of the two roles (send, receive) in a push kernel's block.
inline constexpr int kRoleThreads = 256;
/// Bytes of the data in packets and in lines that a warp moves at once, and of what they take on
/// the wire with their flags.
inline constexpr std::uint32_t kPacketSpan = 256, kPacketSpanWire = 512;
inline constexpr std::uint32_t kLineSpan = 960, kLineSpanWire = 1024;

/// A flag that one rank sets and another waits for; alone in its memory sector.
struct alignas(32) Flag {
  std::uint32_t value;
};

/// Head of each rank's arena, the memory that all peers see. Flags only ever grow (modulo 2^32) and
/// are written by one peer each, which the last index of kMaxPeers names; those for pieces are of
/// groups of two.
struct Board {
  Flag present[kMaxPeers];              ///< operation in cells that the peer has begun
  Flag full[kMaxBlocks][kMaxPeers];     ///< chunks that the peer has put into the queue here
  Flag emptied[kMaxBlocks][kMaxPeers];  ///< chunks that the peer has taken out of its queue
  Flag peer_failed;                     ///< not 0: what copy engines bring from there is worthless
  Flag piece_full;                      ///< pieces of the peer that are here, but for heads
  Flag head_full[kMaxBlocks];           ///< pieces whose head is here, the part of the peer's block
  Flag piece_emptied[kMaxBlocks];       ///< pieces from here that the peer's block has taken
  Flag chunks_left[kMaxBlocks];         ///< chunks from here that have arrived at the peer's block
};

/// Counters of one rank, in its own device memory: they survive from one operation, or replay of a
/// graph, to the next.
struct Progress {
  std::uint32_t failed;             ///< Code of the first failure; everything ends at once then
  std::uint32_t cells[kMaxBlocks];  ///< tag of the last operation in cells, the same in all entries
  std::uint32_t sent[kMaxBlocks][kMaxPeers];      ///< chunks put into a peer's queue
  std::uint32_t received[kMaxBlocks][kMaxPeers];  ///< chunks taken out of a peer's queue here
  std::uint32_t piece_number;                     ///< of the next piece sent; the first is 1
  std::uint32_t pieces_sent[kMaxBlocks];      ///< as a block counts them: the first may be ahead
  std::uint32_t pieces_received[kMaxBlocks];  ///< and a block's part taken
  std::uint32_t chunks_arrived[kMaxBlocks];   ///< of pieces, at a block of this rank
  std::uint32_t chunks_left[kMaxBlocks];      ///< of pieces, at the peer's block
};

/// Between host and device, in page-locked memory.
struct Mailbox {
  std::uint32_t abort;  ///< set by the host: all kernels end
  std::uint32_t code;   ///< set by the device, last: Code of the failure
  std::int32_t peer;    ///< rank that was waited for, or -1
};

/// Where cells of one kind (packets or lines) lie in every arena: [parity][phase][source] bytes.
struct Inboxes {
  std::uint64_t offset;
  std::uint64_t bytes;  ///< of one source
  std::uint32_t phases;
};

/// A group of peers, as its kernels see it. Passed by value.
struct Group {
  int rank;
  int size;
  std::byte* arena[kMaxPeers];
  Progress* progress;
  Mailbox* mailbox;
  std::uint64_t timeout_ns;  ///< 0: none
  bool early;                ///< all kernels are launched early, not only small ones
  Inboxes packets, lines;
  std::uint32_t cell_blocks;   ///< most blocks of a kernel that moves cells
  std::uint64_t queue_offset;  ///< in the arena: [block][source][slot] bytes
  std::uint32_t slot_bytes;
  std::uint32_t slots;
  std::uint64_t staging_offset;  ///< in the arena: where copy engines put pieces
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

/// What staging memory for copy engines holds where nothing has arrived: a NaN in every floating
/// type that no arithmetic makes, and no likely integer.
inline constexpr std::uint32_t kBlank = 0xff8db35au;

/// How a run is cut into pieces for copy engines. The staging memory holds one.
struct PieceShape {
  std::uint64_t piece_bytes;  ///< at most, a multiple of 1 MiB
  std::uint64_t head_bytes;   ///< at most

  /// Piece `index` of a run.
  constexpr Range piece(std::uint64_t run_bytes, std::uint32_t index) const {
    const std::uint64_t begin = index * piece_bytes;
    if (begin >= run_bytes) return {run_bytes, 0};
    return {begin, piece_bytes < run_bytes - begin ? piece_bytes : run_bytes - begin};
  }
  constexpr std::uint32_t count(std::uint64_t run_bytes) const {
    return static_cast<std::uint32_t>((run_bytes + piece_bytes - 1) / piece_bytes);
  }
  /// How much of a piece of `bytes` the kernel stores while the copy engine starts.
  constexpr std::uint64_t head(std::uint64_t bytes) const {
    constexpr std::uint64_t kUnit = 64 * 1024;
    return (head_bytes < bytes / 8 ? head_bytes : bytes / 8) / kUnit * kUnit;
  }
};

/// One rank's part of an exchange of at most a piece each way. Passed by value.
struct PieceExchange {
  const std::byte* sent;
  const std::byte* own;  ///< values that stay here
  std::byte* output;     ///< of what comes from the peer, or of the reduction with it
  std::byte* kept;       ///< where `own` goes if nothing is reduced
  std::uint64_t sent_bytes, received_bytes, kept_bytes;
  std::uint64_t sent_head, received_head;  ///< bytes that no copy engine carries
  bool combine, aligned;
  bool in_place;  ///< `output` is where the values for the peer are
  Arithmetic arithmetic;
};

}  // namespace tersum::gpu
