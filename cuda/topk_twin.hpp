// The steps of the twin of topk: memory, and one launch per step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "compressors/elias_fano.hpp"
#include "cuda/stream.hpp"
#include "tersum/compressor.hpp"

namespace tersum::gpu {

inline constexpr std::uint32_t kTopBins = 2048;      // upper 11 of the 31 bits of a magnitude
inline constexpr std::uint32_t kLowerBins = 1024;    // 10 bits each
inline constexpr std::uint32_t kSelectTile = 16384;  // elements
inline constexpr std::uint32_t kCandidateTile = 4096;

inline constexpr std::uint32_t kSlotElements = 512;  // that have a slot together
inline constexpr std::uint32_t kSlotValues = 32;

inline constexpr unsigned kPassBlocks = 132 * 8;  // of kernels that loop over tiles

/// Tickets of SelectControl; those of the refining steps are numbered by what was known before.
inline constexpr int kCandidateTicket = 0;
inline constexpr int kMarkTicket = 2;
inline constexpr int kNarrowTickets = 5;  // and the one behind it
inline constexpr int kPartTicket = 7;
inline constexpr int kSampleTicket = 8;

/// Words of TwinState::hint().
inline constexpr int kFloorHint = 0;       ///< guessed for the next step; 0: no guess
inline constexpr int kThresholdHint = 1;   ///< of the last step
inline constexpr int kTopKMissesHint = 2;  ///< steps, so far, that had no use of a guess

/// What is known about the cut so far.
enum class Knowledge : std::uint32_t {
  Guessed = 0,   ///< the guess from the last step held: bitmap of candidates ready
  Nothing = 1,   ///< neither guess nor sample was of use: a histogram is needed
  Bin = 2,       ///< the bin of the k-th element gives few enough candidates
  TopBits = 3,   ///< too many candidates: 11 bits of the threshold are known
  HighBits = 4,  ///< 21 bits
  Exact = 5,     ///< all bits
  Sampled = 6,   ///< a sample's floor held: bitmap of candidates ready
};

/// Counters of one selection; zero before it.
struct SelectControl {
  std::uint32_t all[kTopBins + 2 * kLowerBins];        ///< histograms of all elements
  std::uint32_t candidate[kTopBins + 2 * kLowerBins];  ///< and of candidates
  std::uint32_t sample[kTopBins + kLowerBins];         ///< and of a sample
  std::uint32_t tickets[9];
  std::uint32_t hits;        ///< elements of the sample that reach the guess
  std::uint32_t is_sampled;  ///< 1: the floor is the sample's
  Knowledge knowledge;
  std::uint32_t floor;       ///< candidates have magnitudes of at least this
  std::uint32_t left;        ///< the threshold is the left-th largest of those with its known bits
  std::uint32_t candidates;  ///< their number
  std::uint32_t prefix;      ///< known bits of the threshold among the candidates, then all of it
  std::uint32_t ties;        ///< candidates equal to the threshold that are kept
};

/// Device memory of one selection or one decoding, cut from a workspace.
struct SelectMemory {
  SelectControl* control;
  std::uint32_t* reached;     ///< [tiles] elements per tile that reach the floor of the pass
  std::uint32_t* tile_above;  ///< [tiles] candidates per tile, then their prefix sums
  std::uint32_t* tile_equal;  ///< [tiles] Exact only: those equal to the threshold
  std::uint32_t* above;       ///< [tiles * kSelectTile / 32] bitmap of candidates
  std::uint32_t* equal;       ///< the same size; Exact only
  std::uint32_t* sample;      ///< magnitudes; of large gradients only
  std::uint32_t* slots;  ///< [tiles * kSelectTile / kSlotElements][kSlotValues] Guessed, Sampled:
                         ///< bits of the candidates of kSlotElements, if there is a fair number
  std::uint32_t* index;  ///< [capacity] of the candidates, ascending
  std::uint32_t* value;  ///< [capacity] their bits
  std::uint32_t* part_above;  ///< [parts] selected per kCandidateTile candidates
  std::uint32_t* part_equal;
  std::uint32_t* chosen;  ///< [kept] indices that are sent
  std::uint32_t tiles;
  std::uint32_t capacity;
  std::uint32_t parts;
  std::size_t cleared_bytes;  ///< control and tile counts, which must be zero at first
  std::size_t bytes;          ///< of all
};
SelectMemory cut_select_memory(std::byte* workspace, std::size_t count, std::size_t kept);

/// A payload of topk: its parts, and what its header must be.
struct TopKPayload {
  PayloadHeader header;
  std::uint32_t count;
  std::uint32_t kept;
  std::uint32_t low_bits;
  std::size_t low_bytes;
  std::size_t high_bits;
  std::size_t high_bytes;
};
TopKPayload make_topk_payload(std::size_t count, std::size_t kept);

struct Feed;

/// Adds up what is sent (into feed.residual_next and the next velocity, where there are some) and
/// lists the candidates: memory.index, memory.value and the control block, with the upper bits of
/// the threshold. `mask` names elements without residual; `hint` may be null.
void launch_find_candidates(StreamView stream, const Feed& feed, const SelectMemory& memory,
                            const TopKPayload& packed, const std::uint32_t* mask,
                            const std::uint32_t* hint);

/// Writes the payload of the chosen elements: indices from memory.chosen (values are there
/// already).
void launch_pack_indices(StreamView stream, const TopKPayload& layout, const SelectMemory& memory,
                         float* residual_next, std::byte* payload);

/// Device memory that decoding needs.
std::size_t topk_decode_bytes(const TopKPayload& layout);

/// Checks a payload and reads its indices into the workspace; returns where they are: [kept].
const std::uint32_t* launch_read_indices(StreamView stream, const TopKPayload& layout,
                                         const std::byte* payload, std::byte* workspace,
                                         std::uint32_t* fault);

}  // namespace tersum::gpu
