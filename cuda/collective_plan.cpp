#include "cuda/collective_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr std::size_t kPage = 2 * kMiB;  // of device memory: copy engines like whole ones
constexpr std::size_t kChunkUnit = kRoleThreads * 16;  // a vector for each thread

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

struct Hull {
  std::uintptr_t begin = UINTPTR_MAX, end = 0;

  void add(const void* base, const Range& run) {
    if (run.bytes == 0) return;
    const auto first = reinterpret_cast<std::uintptr_t>(base) + run.offset;
    begin = std::min(begin, first);
    end = std::max(end, first + run.bytes);
  }
};

bool overlaps(const Exchange& exchange) noexcept {
  Hull sent, placed;
  for (int i = 0; i < kMaxPeers; ++i) {
    sent.add(exchange.input, exchange.send[i]);
    placed.add(exchange.output, exchange.place[i]);
  }
  return sent.begin < placed.end && placed.begin < sent.end;
}

int most_push_blocks(const PeerSettings& settings) noexcept {
  return settings.push_blocks == 0 ? kMaxBlocks : settings.push_blocks;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(Code::InvalidArgument, message);
}

/// For settings. What is checked in each call builds its message only when it refuses.
void refuse_unless(bool condition, const std::string& message) {
  if (!condition) refuse(message);
}

}  // namespace

AlgorithmTable AlgorithmTable::for_ranks(int size) noexcept {
  AlgorithmTable table;
  if (size <= 2) {
    table.packets_bytes = 8 * kKiB;
    table.lines_bytes = 16 * kMiB;
    table.push_bytes = SIZE_MAX;
    table.copy_engines_bytes = size == 2 ? 32 * kMiB : 0;
    return table;
  }
  table.packets_bytes = size <= 4 ? 32 * kKiB : 16 * kKiB;
  table.packets_two_shot_bytes = 128 * kKiB;
  table.lines_bytes = 1 * kMiB;
  return table;
}

PeerSettings complete_settings(const PeerSettings& wanted, int size) {
  PeerSettings settings = wanted;
  const AlgorithmTable& table = settings.table;
  if (table == AlgorithmTable{}) {
    settings.table = AlgorithmTable::for_ranks(size);
    if (!settings.copy_engines) settings.table.copy_engines_bytes = 0;
  }
  refuse_unless(settings.table.packets_bytes <= kPacketCapacity,
                "packets hold at most " + std::to_string(kPacketCapacity) + " bytes");
  refuse_unless(
      share_bytes(settings.table.packets_two_shot_bytes, size > 2 ? size : 1) <= kPacketCapacity,
      "packets in two steps hold at most " + std::to_string(kPacketCapacity) + " bytes of a share");
  refuse_unless(settings.table.lines_bytes <= line_capacity(size),
                "lines hold at most " + std::to_string(line_capacity(size)) + " bytes");
  refuse_unless(
      settings.table.copy_engines_bytes == 0 || (settings.copy_engines && size == 2),
      "the table asks for copy engines, which take two ranks and the setting copy_engines");
  refuse_unless(settings.timeout.count() >= 0, "the timeout is negative");
  refuse_unless(settings.push_blocks >= 0 && settings.push_blocks <= kMaxBlocks,
                "push_blocks must be 0 to " + std::to_string(kMaxBlocks));
  refuse_unless(settings.cell_blocks >= 0 && settings.cell_blocks <= kMaxBlocks,
                "cell_blocks must be 0 to " + std::to_string(kMaxBlocks));
  refuse_unless(settings.push_lead >= 1 && settings.push_lead <= 4, "push_lead must be 1 to 4");
  refuse_unless(settings.slots >= 1 && settings.slots <= kMaxSlots, "slots must be 1 to 64");
  refuse_unless(settings.slot_bytes >= kChunkUnit && settings.slot_bytes % kChunkUnit == 0 &&
                    settings.slot_bytes <= kMiB,
                "slot_bytes must be a multiple of 4096, at most 1 MiB");
  refuse_unless(settings.staging_bytes >= kMiB && settings.staging_bytes % kMiB == 0,
                "staging_bytes must be a multiple of 1 MiB");
  refuse_unless(settings.staging_blocks >= 1 && settings.staging_blocks <= kMaxBlocks,
                "staging_blocks must be 1 to " + std::to_string(kMaxBlocks));
  return settings;
}

std::size_t line_capacity(int size) noexcept {
  return size <= 2 ? 16 * kMiB : 16 / static_cast<std::size_t>(size) * kMiB;
}

std::size_t lay_out(Group& group, const PeerSettings& settings, int rank, int size) {
  constexpr std::size_t kUnit = 256;
  const auto ranks = static_cast<std::size_t>(size);
  group.rank = rank;
  group.size = size;
  group.timeout_ns = static_cast<std::uint64_t>(settings.timeout.count()) * 1'000'000;
  group.early = settings.early_launch;
  group.cell_blocks =
      static_cast<std::uint32_t>(settings.cell_blocks == 0 ? kMaxBlocks : settings.cell_blocks);
  std::size_t end = round_up(sizeof(Board), kUnit);
  const auto add_inboxes = [&](std::size_t spans, std::size_t wire, std::uint32_t phases) {
    const Inboxes boxes{end, spans * wire, phases};
    end += 2 * phases * ranks * boxes.bytes;
    return boxes;
  };
  const std::uint32_t phases = size > 2 ? 2 : 1;
  group.packets = add_inboxes(kPacketCapacity / kPacketSpan, kPacketSpanWire, phases);
  const std::size_t lines = size > 1 ? line_capacity(size) / kLineSpan + 1 : 0;
  group.lines = add_inboxes(lines, kLineSpanWire, phases);
  group.queue_offset = end;
  group.slot_bytes = static_cast<std::uint32_t>(settings.slot_bytes);
  group.slots = static_cast<std::uint32_t>(settings.slots);
  end += kMaxBlocks * ranks * settings.slot_bytes * static_cast<std::size_t>(settings.slots);
  group.staging_offset = 0;
  if (size == 2 && settings.copy_engines) {
    group.staging_offset = round_up(end, kPage);
    end = group.staging_offset + settings.staging_bytes;
  }
  return end;
}

Algorithm without_idle_step(Algorithm algorithm, int size) noexcept {
  if (size > 2) return algorithm;
  if (algorithm == Algorithm::PacketsTwoShot) return Algorithm::Packets;
  return algorithm == Algorithm::LinesTwoShot ? Algorithm::Lines : algorithm;
}

Algorithm choose_all_reduce(const AlgorithmTable& table, std::size_t bytes, int size) noexcept {
  if (table.copy_engines_bytes != 0 && bytes >= table.copy_engines_bytes) {
    return Algorithm::CopyEngines;
  }
  if (bytes <= table.packets_bytes) return Algorithm::Packets;
  if (bytes <= table.packets_two_shot_bytes)
    return without_idle_step(Algorithm::PacketsTwoShot, size);
  if (size == 2 && bytes <= table.lines_bytes) return Algorithm::Lines;
  if (size > 2 && share_bytes(bytes, size) <= table.lines_bytes) return Algorithm::LinesTwoShot;
  return bytes <= table.push_bytes ? Algorithm::Push : Algorithm::PushTwoShot;
}

Algorithm choose_exchange(const AlgorithmTable& table, std::size_t bytes) noexcept {
  if (bytes <= table.packets_bytes) return Algorithm::Packets;
  if (bytes <= table.lines_bytes) return Algorithm::Lines;
  const bool large = table.copy_engines_bytes != 0 && bytes >= table.copy_engines_bytes;
  return large ? Algorithm::CopyEngines : Algorithm::Push;
}

Arithmetic checked_arithmetic(DType dtype, ReduceOp op, const Scales& scales) {
  if (element_bytes(dtype) == 0) refuse("this dtype does not exist");
  if (!std::isfinite(scales.pre) || !std::isfinite(scales.post)) refuse("scales must be finite");
  if (!is_floating(dtype) && (scales.pre != 1.0 || scales.post != 1.0))
    refuse("scales need a floating dtype, not " + std::string(to_string(dtype)));
  if (dtype == DType::Bool && op == ReduceOp::Average)
    refuse("the average of bool has no meaning: use max (any) or min (all), or another dtype");
  return {op, scales.pre, scales.post};
}

bool is_aligned(const void* address, std::uintptr_t bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

void check_tensors(const void* input, const void* output, DType dtype) {
  const std::size_t element = element_bytes(dtype);
  if (element == 0) refuse("this dtype does not exist");
  if (!is_aligned(input, element) || !is_aligned(output, element))
    refuse("a tensor is not aligned for " + std::string(to_string(dtype)));
}

void check_rank(int rank, int size, const char* what) {
  if (rank < 0 || rank >= size)
    refuse(std::string(what) + " " + std::to_string(rank) + " is not one of " +
           std::to_string(size) + " ranks");
}

void check_counts(std::span<const std::size_t> counts, int size, const char* what) {
  if (counts.size() != static_cast<std::size_t>(size))
    refuse(std::string(what) + " has " + std::to_string(counts.size()) + " entries for " +
           std::to_string(size) + " ranks");
}

Exchange new_exchange(const void* input, void* output, const Arithmetic& arithmetic) {
  Exchange exchange{};
  exchange.input = static_cast<const std::byte*>(input);
  exchange.output = static_cast<std::byte*>(output);
  exchange.arithmetic = arithmetic;
  return exchange;
}

void place_runs(Range (&runs)[kMaxPeers], std::span<const std::size_t> counts,
                std::size_t element_bytes) noexcept {
  std::uint64_t offset = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    runs[r] = {offset, counts[r] * element_bytes};
    offset += runs[r].bytes;
  }
}

void set_alignment(Exchange& exchange, bool packets) noexcept {
  const std::uintptr_t unit = packets ? 8 : 16;
  bool aligned = is_aligned(exchange.input, unit) && is_aligned(exchange.output, unit);
  for (int i = 0; i < kMaxPeers; ++i) {
    aligned =
        aligned && exchange.send[i].offset % unit == 0 && exchange.place[i].offset % unit == 0;
  }
  exchange.aligned = aligned;
  exchange.overlaps = overlaps(exchange);
}

DType copy_type(const Exchange& exchange) noexcept {
  std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(exchange.input) |
                        reinterpret_cast<std::uintptr_t>(exchange.output);
  for (int i = 0; i < kMaxPeers; ++i) {
    bits |= exchange.send[i].offset | exchange.send[i].bytes;
    bits |= exchange.place[i].offset | exchange.place[i].bytes;
  }
  if (bits % 8 == 0) return DType::Int64;
  if (bits % 4 == 0) return DType::Int32;
  return bits % 2 == 0 ? DType::Int16 : DType::UInt8;
}

int choose_chunks(Exchange& exchange, const PeerSettings& settings, int size) noexcept {
  std::uint64_t bytes = 1;
  for (int i = 0; i < size; ++i) {
    bytes = std::max({bytes, exchange.send[i].bytes, exchange.place[i].bytes});
  }
  const auto most = static_cast<std::uint64_t>(most_push_blocks(settings));
  const std::uint64_t even = round_up<std::uint64_t>((bytes + most - 1) / most, kChunkUnit);
  exchange.lead = static_cast<std::uint32_t>(settings.push_lead);
  exchange.chunk_bytes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(even, settings.slot_bytes));
  const std::uint64_t chunks = (bytes + exchange.chunk_bytes - 1) / exchange.chunk_bytes;
  return static_cast<int>(std::min(chunks, most));
}

int choose_fixed_chunks(Exchange& exchange, const PeerSettings& settings) noexcept {
  exchange.lead = static_cast<std::uint32_t>(settings.push_lead);
  exchange.chunk_bytes = static_cast<std::uint32_t>(settings.slot_bytes);
  return most_push_blocks(settings);
}

std::uint64_t share_bytes(std::uint64_t bytes, int size) noexcept {
  const auto ranks = static_cast<std::uint64_t>(size);
  return round_up<std::uint64_t>((bytes + ranks - 1) / ranks, 16);
}

Range share_of(std::uint64_t bytes, std::uint64_t share, int rank) noexcept {
  const std::uint64_t offset = std::min(bytes, static_cast<std::uint64_t>(rank) * share);
  return {offset, std::min(share, bytes - offset)};
}

}  // namespace tersum::gpu
