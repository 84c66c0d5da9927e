// The hash that turns a gradient's name into SliceContext::key.
#pragma once

#include <cstdint>
#include <string_view>

namespace tersum::compressors {

/// FNV-1a, 64 bits, of the bytes of `key`. Fixed forever: it keys the random draws of every rank
/// and device, so equal names must give equal numbers on all of them.
constexpr std::uint64_t key_hash(std::string_view key) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : key) {
    hash ^= static_cast<std::uint8_t>(c);
    hash *= 0x100000001b3ull;
  }
  return hash;
}

}  // namespace tersum::compressors
