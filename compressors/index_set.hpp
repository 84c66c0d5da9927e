// The index set of random-k: a keyed permutation, the same on every rank and device.
//
// w = max(6, bit width of count - 1); halves of w / 2 (left) and
// w - w / 2 (right) bits; 8 rounds (L, R) -> (R, L ^ (mix(R + K_r) mod 2^bits of L)), with K_0..K_7
// the words of groups 0 and 1 of the IndexSet stream and mix the 32-bit finaliser of MurmurHash3.
// Eight rounds on 6 bits or more pass chi-square tests of single elements and of pairs; on fewer
// bits they do not.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "compressors/philox.hpp"

namespace tersum::compressors {

/// The first indices of a keyed permutation of [0, count). Trivially copyable, so that it can be a
/// kernel's argument; at() is constant time and needs no memory.
class IndexSet {
 public:
  IndexSet(const SliceContext& context, std::size_t count) : count_(count) {
    const DrawStream stream = draw_stream(context, Purpose::IndexSet);
    for (std::size_t j = 0; j < 8; ++j) keys_[j] = draw(stream, j / 4)[j % 4];
    const int width = std::max(6, static_cast<int>(std::bit_width(count > 0 ? count - 1 : 0)));
    left_bits_ = width / 2;
    right_bits_ = width - left_bits_;
  }

  /// Becomes that of the same count under other keys.
  constexpr void set_keys(const std::uint32_t (&keys)[8]) noexcept {
    for (int j = 0; j < 8; ++j) keys_[j] = keys[j];
  }

  /// Index `j` of the set; j < count.
  constexpr std::size_t at(std::size_t j) const noexcept {
    std::uint64_t value = j;
    do {
      value = permute(value);
    } while (value >= count_);
    return value;
  }

 private:
  static constexpr std::uint32_t mix(std::uint32_t value) noexcept {
    value ^= value >> 16;
    value *= 0x85ebca6bu;
    value ^= value >> 13;
    value *= 0xc2b2ae35u;
    return value ^ (value >> 16);
  }

  static constexpr std::uint32_t mask(int bits) noexcept {
    return static_cast<std::uint32_t>((std::uint64_t{1} << bits) - 1);
  }

  constexpr std::uint64_t permute(std::uint64_t value) const noexcept {
    int left_bits = left_bits_;
    int right_bits = right_bits_;
    auto left = static_cast<std::uint32_t>(value >> right_bits);
    auto right = static_cast<std::uint32_t>(value) & mask(right_bits);
    for (const std::uint32_t key : keys_) {
      const std::uint32_t next = left ^ (mix(right + key) & mask(left_bits));
      left = right;
      right = next;
      const int other_bits = left_bits;
      left_bits = right_bits;
      right_bits = other_bits;
    }
    return std::uint64_t{left} << right_bits | right;
  }

  std::uint64_t count_;
  std::uint32_t keys_[8] = {};
  int left_bits_;
  int right_bits_;
};

}  // namespace tersum::compressors
