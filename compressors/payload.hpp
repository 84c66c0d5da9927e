// Payload headers: written first, checked before anything is decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tersum/compressor.hpp"

namespace tersum::compressors {

inline constexpr std::size_t kHeaderBytes = sizeof(PayloadHeader);

/// Elements that decoders stage at once; a multiple of every group of packed codes.
inline constexpr std::size_t kChunk = 1024;

/// Writes the header of a payload of `count` elements and returns its body of `body_bytes`. Error
/// InvalidArgument if `payload` is too small, Unsupported if the body does not fit the format
/// (4 GiB).
std::span<std::byte> begin_payload(const CompressorTraits& traits, std::uint8_t flags,
                                   std::size_t count, std::size_t body_bytes,
                                   std::span<std::byte> payload);

/// The body of a payload of `count` elements whose body must have exactly `body_bytes`. Error
/// Protocol, saying what is wrong, if the header is not that of such a payload.
std::span<const std::byte> checked_body(const CompressorTraits& traits, std::uint8_t flags,
                                        std::size_t count, std::size_t body_bytes,
                                        std::span<const std::byte> payload);

/// Error Protocol "<method> payload: <what>".
[[noreturn]] void refuse_payload(const CompressorTraits& traits, const char* what);

/// Element `index` of an array of T that starts at `bytes`, which needs no alignment.
template <typename T>
T load(const std::byte* bytes, std::size_t index = 0) noexcept {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* bytes, std::size_t index, T value) noexcept {
  std::memcpy(bytes + index * sizeof(T), &value, sizeof(T));
}

}  // namespace tersum::compressors
