// Keyed digests and random numbers of the control plane, on OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace tersum::transport::control {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;
using Digest = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

/// HMAC-SHA256 (RFC 2104) over the concatenation of `parts`. The key must not be empty. Any thread.
/// Throws Error System if OpenSSL refuses.
Digest hmac_sha256(ByteView key, std::initializer_list<ByteView> parts);

/// Compares without telling by its time where the first difference is.
bool equal_in_constant_time(ByteView a, ByteView b) noexcept;

/// 32 bytes that nobody can guess. Throws Error System if OpenSSL has no entropy.
Nonce random_nonce();

inline ByteView as_bytes(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace tersum::transport::control
