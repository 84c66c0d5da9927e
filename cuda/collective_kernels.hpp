// Launches of the kernels behind PeerCommunicator. Each puts its work into `stream`, can be
// captured into a graph, neither blocks nor allocates, and throws Error if the launch is refused.
#pragma once

#include <cstdint>

#include "cuda/collective_layout.hpp"
#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// `exchange` in packets of 8 bytes of data with two 4-byte flags: no barrier, for small runs, at
/// most kPacketCapacity. All ranks of the group take part, each with the same operation.
void launch_packets(const Group& group, const Exchange& exchange, DType dtype, StreamView stream);

/// All-reduce in packets in two steps: place[r] is the share that rank r reduces, in input and
/// output alike. For three and more ranks, when the tensor is not tiny.
void launch_packets_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                             StreamView stream);

/// The same in lines of 120 bytes of data with an 8-byte flag, for runs of up to line_capacity().
/// Only between GPUs that keep a line together: see collective_lines.cu.
void launch_lines(const Group& group, const Exchange& exchange, DType dtype, StreamView stream);
void launch_lines_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                           StreamView stream);

/// `exchange` in chunks of exchange.chunk_bytes through queues in the peers' memory, one queue for
/// each block and pair of ranks: any length. Sender and receiver of a run use the same chunk_bytes
/// and `blocks`; ranks that neither send nor receive need not take part.
void launch_push(const Group& group, const Exchange& exchange, DType dtype, int blocks,
                 StreamView stream);

/// Fills staging memory, a multiple of 16 bytes, with kBlank.
void launch_make_blank(std::byte* staging, std::size_t bytes, StreamView stream);
/// Does what a copy engine does, for what begins at no multiple of 4 bytes.
void launch_copy(std::byte* to, const std::byte* from, std::uint64_t bytes, DType dtype,
                 StreamView stream);
/// Stores the head of a piece at the peer, takes the peer's piece out of the staging memory as it
/// arrives, and ends when the peer has taken this rank's.
void launch_piece(const Group& group, const PieceExchange& exchange, DType dtype, int blocks,
                  StreamView stream);

/// Loads all kernels of the collectives onto the current device. Otherwise CUDA loads each at its
/// first launch, which may wait for kernels that are running, and those may wait for peers.
void load_packet_kernels();
void load_line_kernels();
void load_push_kernels();
void load_staging_kernels();

}  // namespace tersum::gpu
