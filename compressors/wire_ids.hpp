// The numbers by which payloads name their method.
#pragma once

#include <cstdint>

namespace tersum::compressors {

/// Wire ids, in every payload header. Never reused, never renumbered.
namespace wire_id {
inline constexpr std::uint16_t kNone = 1;
inline constexpr std::uint16_t kFloat16 = 2;
inline constexpr std::uint16_t kBFloat16 = 3;
inline constexpr std::uint16_t kTopK = 4;
inline constexpr std::uint16_t kRandomK = 5;
inline constexpr std::uint16_t kQInt = 6;
inline constexpr std::uint16_t kSign = 7;
inline constexpr std::uint16_t kFirstOutOfTree = 0x8000;
}  // namespace wire_id

}  // namespace tersum::compressors
