// Launches of the kernels behind PeerCommunicator. Each puts its work into `stream`, can be
// captured into a graph, neither blocks nor allocates, and throws Error if the launch is refused.
#pragma once

#include <cstdint>

#include "cuda/collective_layout.hpp"
#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// `exchange` in packets of 8 bytes of data with two 4-byte flags: no barrier, for small runs. No
/// run is longer than kPacketData / kPacketBytes of group.packets_bytes. All ranks of the group
/// take part, each with the same operation.
void launch_packets(const Group& group, const Exchange& exchange, DType dtype, StreamView stream);

/// All-reduce in packets in two steps: place[r] is the share that rank r reduces, in input and
/// output alike. For three and more ranks, when the tensor is not tiny.
void launch_packets_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                             StreamView stream);

/// `exchange` in chunks of exchange.chunk_bytes through queues in the peers' memory, one queue for
/// each block and pair of ranks: any length. Sender and receiver of a run use the same chunk_bytes
/// and `blocks`; ranks that neither send nor receive need not take part.
void launch_push(const Group& group, const Exchange& exchange, DType dtype, int blocks,
                 StreamView stream);

/// One slice of a copy-engine all-reduce between two ranks.
struct Slice {
  std::uint32_t index;           ///< within its operation
  std::uint32_t count;           ///< slices of the operation
  std::uint64_t staging_offset;  ///< where the peer's values arrive, from group.slices_offset on
  const std::byte* input;        ///< own values
  std::byte* output;
  std::uint64_t bytes;
  bool aligned;  ///< input and output are at multiples of 16 bytes
  Arithmetic arithmetic;
};

/// Waits until the peer has used all but `in_flight` of the slices before slice `index`.
void launch_slice_wait(const Group& group, std::uint32_t index, std::uint32_t in_flight,
                       StreamView stream);
/// Tells the peer that slice `index` lies in its staging memory.
void launch_slice_signal(const Group& group, std::uint32_t index, StreamView stream);
/// Waits for the peer's slice, reduces both into the output, and tells the peer that it is used.
/// The last slice also ends the operation.
void launch_slice_reduce(const Group& group, const Slice& slice, DType dtype, int blocks,
                         StreamView stream);

/// Loads all kernels of the collectives onto the current device. Otherwise CUDA loads each at its
/// first launch, which may wait for kernels that are running, and those may wait for peers.
void load_packet_kernels();
void load_push_kernels();
void load_slice_kernels();

}  // namespace tersum::gpu
