#include "src/engine/signature.hpp"

namespace tersum::runtime {

const char* to_string(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::AllReduce:
      return "all_reduce";
    case CallKind::ReduceScatter:
      return "reduce_scatter";
    case CallKind::AllGather:
      return "all_gather";
    case CallKind::AllGatherV:
      return "all_gather_v";
    case CallKind::Broadcast:
      return "broadcast";
    case CallKind::Reduce:
      return "reduce";
    case CallKind::AllToAll:
      return "all_to_all";
    case CallKind::AllToAllV:
      return "all_to_all_v";
    case CallKind::PointToPoint:
      return "send/receive";
    case CallKind::Barrier:
      return "barrier";
    case CallKind::Split:
      return "split";
    case CallKind::ExchangeSetup:
      return "gradient exchange set-up";
    case CallKind::DeviceSetup:
      return "set-up of device collectives";
    case CallKind::ExchangeSlice:
      return "gradient exchange";
  }
  return "unknown call";
}

std::array<std::uint64_t, 4> Signature::to_note() const noexcept {
  const auto root_bits = static_cast<std::uint32_t>(root);
  return {std::uint64_t{static_cast<std::uint8_t>(kind)} |
              std::uint64_t{static_cast<std::uint8_t>(dtype)} << 8 |
              std::uint64_t{static_cast<std::uint8_t>(op)} << 16 | std::uint64_t{root_bits} << 32,
          count, detail, step};
}

Signature Signature::from_note(const std::array<std::uint64_t, 4>& note) noexcept {
  Signature s;
  s.kind = static_cast<CallKind>(note[0] & 0xff);
  s.dtype = static_cast<DType>(note[0] >> 8 & 0xff);
  s.op = static_cast<ReduceOp>(note[0] >> 16 & 0xff);
  s.root = static_cast<std::int32_t>(static_cast<std::uint32_t>(note[0] >> 32));
  s.count = note[1];
  s.detail = note[2];
  s.step = note[3];
  return s;
}

std::string Signature::describe() const {
  std::string text = to_string(kind);
  if (kind == CallKind::Barrier || kind == CallKind::Split) return text;
  text += " of " + std::to_string(count) + " " + std::string(tersum::to_string(dtype));
  if (kind == CallKind::AllReduce || kind == CallKind::ReduceScatter || kind == CallKind::Reduce)
    text += ", " + std::string(tersum::to_string(op));
  if (root >= 0) text += ", root " + std::to_string(root);
  if (kind == CallKind::ExchangeSlice)
    text += ", step " + std::to_string(step);
  else if (step == kDeviceMemory)
    text += ", in device memory";
  return text;
}

std::string describe_difference(int rank_a, const Signature& a, int rank_b, const Signature& b) {
  std::string text = "rank " + std::to_string(rank_a) + " called " + a.describe() + "; rank " +
                     std::to_string(rank_b) + " called " + b.describe();
  if (a.describe() == b.describe())
    text += a.kind == CallKind::ExchangeSlice ? " (the plans differ)"
                                              : " (scales or per-rank counts differ)";
  return text;
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) noexcept {
  std::uint64_t h = seed ^ (value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2));
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

std::uint64_t digest_of(std::span<const std::size_t> counts) noexcept {
  std::uint64_t digest = 0;
  for (const std::size_t count : counts) digest = mix(digest, count);
  return digest;
}

}  // namespace tersum::runtime
