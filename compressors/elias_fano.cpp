#include "compressors/elias_fano.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tersum::compressors {
namespace {

// True if the bits from `used` on are zero in the `bytes` bytes at `in`.
bool zero_padding(const std::byte* in, std::size_t bytes, std::size_t used) noexcept {
  if (used % 8 == 0) return true;
  return std::to_integer<unsigned>(in[bytes - 1]) >> (used % 8) == 0;
}

std::size_t set_bits(const std::byte* in, std::size_t bytes) noexcept {
  std::size_t total = 0;
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, in + i, std::min<std::size_t>(8, bytes - i));
    total += static_cast<std::size_t>(std::popcount(word));
  }
  return total;
}

}  // namespace

EliasFanoLayout::EliasFanoLayout(std::size_t count, std::size_t kept) noexcept
    : count_(count),
      kept_(kept),
      low_bits_(kept == 0 ? 0 : static_cast<std::size_t>(std::bit_width(count / kept) - 1)) {}

EliasFanoWriter::EliasFanoWriter(const EliasFanoLayout& layout, std::byte* out) noexcept
    : low_(out), high_(out + layout.low_bytes()), low_bits_(layout.low_bits()) {
  std::fill(high_, out + layout.bytes(), std::byte{0});
}

void EliasFanoWriter::put(std::size_t index) noexcept {
  const std::size_t position = (index >> low_bits_) + written_++;
  high_[position / 8] |= std::byte{1} << (position % 8);
  const std::uint64_t mask = (std::uint64_t{1} << low_bits_) - 1;
  pending_ |= (index & mask) << pending_bits_;
  pending_bits_ += low_bits_;
  // Fewer than 8 bits stay pending, so up to 56 low bits fit; counts never need more.
  while (pending_bits_ >= 8) {
    *low_++ = static_cast<std::byte>(pending_);
    pending_ >>= 8;
    pending_bits_ -= 8;
  }
}

void EliasFanoWriter::finish() noexcept {
  if (pending_bits_ > 0) *low_ = static_cast<std::byte>(pending_);
}

EliasFanoReader::EliasFanoReader(const EliasFanoLayout& layout,
                                 std::span<const std::byte> in) noexcept
    : in_(in),
      low_bits_(layout.low_bits()),
      high_byte_(layout.low_bytes()),
      high_start_(layout.low_bytes()) {
  word_ = word_at(high_byte_);
}

std::uint64_t EliasFanoReader::word_at(std::size_t byte) const noexcept {
  std::uint64_t word = 0;
  if (byte < in_.size()) {
    std::memcpy(&word, in_.data() + byte, std::min<std::size_t>(8, in_.size() - byte));
  }
  return word;
}

std::size_t EliasFanoReader::next() noexcept {
  while (word_ == 0) {
    high_byte_ += 8;
    word_ = word_at(high_byte_);
  }
  const std::size_t position =
      (high_byte_ - high_start_) * 8 + static_cast<std::size_t>(std::countr_zero(word_));
  word_ &= word_ - 1;
  const std::size_t low_bit = read_ * low_bits_;
  const std::uint64_t mask = (std::uint64_t{1} << low_bits_) - 1;
  const std::uint64_t low = word_at(low_bit / 8) >> (low_bit % 8) & mask;
  return ((position - read_++) << low_bits_) | low;
}

bool valid_elias_fano(const EliasFanoLayout& layout, std::span<const std::byte> in) noexcept {
  if (in.size() != layout.bytes()) return false;
  if (layout.kept() == 0) return true;
  const std::byte* high = in.data() + layout.low_bytes();
  const std::size_t high_bytes = layout.bytes() - layout.low_bytes();
  if (!zero_padding(in.data(), layout.low_bytes(), layout.kept() * layout.low_bits()) ||
      !zero_padding(high, high_bytes, layout.high_bits()) ||
      set_bits(high, high_bytes) != layout.kept()) {
    return false;
  }
  EliasFanoReader reader(layout, in);
  std::size_t last = reader.next();
  for (std::size_t i = 1; i < layout.kept(); ++i) {
    const std::size_t index = reader.next();
    if (index <= last) return false;
    last = index;
  }
  return last < layout.count();
}

}  // namespace tersum::compressors
