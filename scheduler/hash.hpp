// FNV-1a, 64 bits: a small hash whose value is the same on every machine and compiler.
#pragma once

#include <cstdint>
#include <string_view>

namespace tersum::scheduler {

/// FNV-1a/64 of the bytes of `text` (Fowler, Noll, Vo; IETF draft-eastlake-fnv). It detects honest
/// differences between ranks; it is no protection against forgery.
constexpr std::uint64_t fnv1a64(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char character : text) {
    hash ^= static_cast<unsigned char>(character);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace tersum::scheduler
