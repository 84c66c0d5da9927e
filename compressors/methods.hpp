// The factories of the methods of this tree; registry.cpp lists them.
#pragma once

#include <cstdint>
#include <memory>

#include "tersum/compressor.hpp"

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

/// Each reads its parameters; Error InvalidArgument for values out of range.
std::shared_ptr<const Compressor> make_none(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_float16(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_bfloat16(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_topk(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_randomk(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_qint(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_sign(SpecParameters& parameters);

}  // namespace tersum::compressors
