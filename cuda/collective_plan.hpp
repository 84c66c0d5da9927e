// How the host plans collectives: argument checks, sizes, memory layout. Pure: no CUDA calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/collective_layout.hpp"
#include "cuda/collectives.hpp"

namespace tersum::gpu {

/// Most bytes of one run in packets.
inline constexpr std::size_t kPacketCapacity = std::size_t{512} << 10;
/// Most bytes of one run in lines, by the number of ranks: inboxes take as much memory in all
/// groups.
std::size_t line_capacity(int size) noexcept;

/// Fills in defaults. Error InvalidArgument for values out of range.
PeerSettings complete_settings(const PeerSettings& wanted, int size);

/// Fills in `group`'s geometry and returns the bytes of an arena.
std::size_t lay_out(Group& group, const PeerSettings& settings, int rank, int size);

/// Of one or two ranks, cells in two steps are cells in one: a second step has no place in memory
/// there and saves no bytes.
Algorithm without_idle_step(Algorithm algorithm, int size) noexcept;
/// By the table.
Algorithm choose_all_reduce(const AlgorithmTable& table, std::size_t bytes, int size) noexcept;
/// The same for collectives other than all-reduce, in which one rank's run has `bytes`.
Algorithm choose_exchange(const AlgorithmTable& table, std::size_t bytes) noexcept;

/// Error InvalidArgument for scales of integers, scales that are not finite, averages of bool.
Arithmetic checked_arithmetic(DType dtype, ReduceOp op, const Scales& scales);
/// Error InvalidArgument if a tensor is not aligned for its type.
void check_tensors(const void* input, const void* output, DType dtype);
/// Error InvalidArgument unless 0 <= rank < size.
void check_rank(int rank, int size, const char* what);
/// Error InvalidArgument unless there is one count for each rank.
void check_counts(std::span<const std::size_t> counts, int size, const char* what);

bool is_aligned(const void* address, std::uintptr_t bytes) noexcept;

/// With no runs.
Exchange new_exchange(const void* input, void* output, const Arithmetic& arithmetic);
/// runs[r] has counts[r] elements; one begins where the one before it ends.
void place_runs(Range (&runs)[kMaxPeers], std::span<const std::size_t> counts,
                std::size_t element_bytes) noexcept;
/// Sets `aligned` for packets or else for 16-byte vectors.
void set_alignment(Exchange& exchange, bool packets) noexcept;
/// An integer type as wide as the addresses and lengths of a copy allow.
DType copy_type(const Exchange& exchange) noexcept;
/// Sets chunk_bytes and returns the number of blocks of a push. The same for both ends of a run.
int choose_chunks(Exchange& exchange, const PeerSettings& settings, int size) noexcept;
/// The same, whatever the runs are: for ends that do not know each other's.
int choose_fixed_chunks(Exchange& exchange, const PeerSettings& settings) noexcept;

/// Bytes of each rank's share, the last ones maybe fewer; a multiple of 16.
std::uint64_t share_bytes(std::uint64_t bytes, int size) noexcept;
Range share_of(std::uint64_t bytes, std::uint64_t share, int rank) noexcept;

}  // namespace tersum::gpu
