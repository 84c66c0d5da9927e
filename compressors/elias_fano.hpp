// Elias-Fano code of a strictly increasing list of indices: fixed size, within 0.6 bits per index
// of the entropy. Elias, "Efficient storage and retrieval by content and address of static files",
// 1974.
//
// Indices i_0 < ... < i_(k-1) below n; l = floor(log2(n / k)) low bits each:
//
//   byte 0               k * l bits: the low l bits of i_0, i_1, ..., padded with zeros to a byte
//   byte ceil(k l / 8)   k + ((n - 1) >> l) bits: bit (i_j >> l) + j is set for every j, padded
//
// First bit in the lowest bit of the first byte. Nothing at all for k = 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersum::compressors {

/// Sizes of the code of `kept` indices below `count`; kept <= count.
class EliasFanoLayout {
 public:
  EliasFanoLayout(std::size_t count, std::size_t kept) noexcept;

  std::size_t count() const noexcept { return count_; }
  std::size_t kept() const noexcept { return kept_; }
  std::size_t low_bits() const noexcept { return low_bits_; }
  std::size_t low_bytes() const noexcept { return (kept_ * low_bits_ + 7) / 8; }
  std::size_t high_bits() const noexcept {
    return kept_ == 0 ? 0 : kept_ + ((count_ - 1) >> low_bits_);
  }
  std::size_t bytes() const noexcept { return low_bytes() + (high_bits() + 7) / 8; }

 private:
  std::size_t count_;
  std::size_t kept_;
  std::size_t low_bits_;
};

/// Writes indices one by one into layout.bytes() bytes; finish() after the last.
class EliasFanoWriter {
 public:
  EliasFanoWriter(const EliasFanoLayout& layout, std::byte* out) noexcept;

  /// The next index: larger than the one before, below layout.count().
  void put(std::size_t index) noexcept;
  void finish() noexcept;

 private:
  std::byte* low_;
  std::byte* high_;
  std::size_t low_bits_;
  std::size_t written_ = 0;
  std::uint64_t pending_ = 0;
  std::size_t pending_bits_ = 0;
};

/// Reads the indices back, one by one. Check untrusted bytes with valid_elias_fano() first.
class EliasFanoReader {
 public:
  EliasFanoReader(const EliasFanoLayout& layout, std::span<const std::byte> in) noexcept;

  /// The next index; at most as often as bits are set in the high part.
  std::size_t next() noexcept;

 private:
  std::uint64_t word_at(std::size_t byte) const noexcept;

  std::span<const std::byte> in_;
  std::size_t low_bits_;
  std::size_t high_byte_;  // where the current word of the high part starts
  std::size_t high_start_;
  std::uint64_t word_ = 0;
  std::size_t read_ = 0;
};

/// True if `in`, which has layout.bytes(), holds exactly layout.kept() strictly increasing indices
/// below layout.count() and zeros in all padding.
bool valid_elias_fano(const EliasFanoLayout& layout, std::span<const std::byte> in) noexcept;

}  // namespace tersum::compressors
