// What a rank believes it is doing: travels with every message, and is compared with what the
// receiver is doing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tersum/types.hpp"

namespace tersum::runtime {

enum class CallKind : std::uint8_t {
  AllReduce = 1,
  ReduceScatter,
  AllGather,
  AllGatherV,
  Broadcast,
  Reduce,
  AllToAll,
  AllToAllV,
  PointToPoint,
  Barrier,
  Split,
  ExchangeSetup,
  ExchangeSlice,
  DeviceSetup,
};
const char* to_string(CallKind kind) noexcept;

/// Signature::step of a collective on tensors in device memory.
inline constexpr std::uint64_t kDeviceMemory = 1;

/// The parts of a call that must agree on all ranks of its group.
struct Signature {
  CallKind kind = CallKind::Barrier;
  DType dtype = DType::UInt8;
  ReduceOp op = ReduceOp::Sum;
  std::int32_t root = -1;
  std::uint64_t count = 0;
  std::uint64_t detail = 0;  ///< hash of what is longer: per-rank counts, scales, the plan
  std::uint64_t step = 0;    ///< exchanges: the training step; collectives: kDeviceMemory or 0

  friend bool operator==(const Signature&, const Signature&) = default;

  /// As the note of an envelope, and back. Unknown bytes give a signature that equals no real one.
  std::array<std::uint64_t, 4> to_note() const noexcept;
  static Signature from_note(const std::array<std::uint64_t, 4>& note) noexcept;

  /// "all_reduce of 1024 fp32, sum".
  std::string describe() const;
};

/// Both views: "rank 0 called all_reduce of 10 fp32, sum; rank 2 called barrier".
std::string describe_difference(int rank_a, const Signature& a, int rank_b, const Signature& b);

/// 64-bit mixing of values into `seed`, for Signature::detail.
std::uint64_t mix(std::uint64_t seed, std::uint64_t value) noexcept;
/// Of counts of elements by rank, for Signature::detail.
std::uint64_t digest_of(std::span<const std::size_t> counts) noexcept;

}  // namespace tersum::runtime
