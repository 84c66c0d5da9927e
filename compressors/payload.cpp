#include "compressors/payload.hpp"

#include <bit>
#include <limits>
#include <string>

namespace tersum::compressors {

static_assert(std::endian::native == std::endian::little,
              "payloads are little-endian and written by memcpy");

namespace {

[[noreturn]] void refuse(const CompressorTraits& traits, const std::string& what) {
  throw Error(Code::Protocol, std::string(traits.name) + " payload: " + what);
}

std::string expected(const char* what, std::uint64_t found, std::uint64_t wanted) {
  return std::string(what) + " is " + std::to_string(found) + ", expected " +
         std::to_string(wanted);
}

}  // namespace

std::span<std::byte> begin_payload(const CompressorTraits& traits, std::uint8_t flags,
                                   std::size_t count, std::size_t body_bytes,
                                   std::span<std::byte> payload) {
  if (body_bytes > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(Code::Unsupported, std::string(traits.name) + ": " + std::to_string(count) +
                                       " elements make a payload beyond 4 GiB; cut the gradient "
                                       "into smaller slices");
  }
  if (payload.size() < kHeaderBytes + body_bytes) {
    throw Error(Code::InvalidArgument,
                std::string(traits.name) + ": payload buffer has " +
                    std::to_string(payload.size()) + " bytes, needs max_payload_bytes(" +
                    std::to_string(count) + ") = " + std::to_string(kHeaderBytes + body_bytes));
  }
  const PayloadHeader header{traits.wire_id, traits.wire_version, flags,
                             static_cast<std::uint32_t>(body_bytes), count};
  std::memcpy(payload.data(), &header, sizeof header);
  return payload.subspan(kHeaderBytes, body_bytes);
}

std::span<const std::byte> checked_body(const CompressorTraits& traits, std::uint8_t flags,
                                        std::size_t count, std::size_t body_bytes,
                                        std::span<const std::byte> payload) {
  if (payload.size() < kHeaderBytes) {
    refuse(traits, std::to_string(payload.size()) + " bytes are less than a header of " +
                       std::to_string(kHeaderBytes));
  }
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  if (header.wire_id != traits.wire_id) {
    refuse(traits, expected("wire id", header.wire_id, traits.wire_id));
  }
  if (header.wire_version != traits.wire_version) {
    refuse(traits, expected("wire version", header.wire_version, traits.wire_version));
  }
  if (header.flags != flags) refuse(traits, expected("flags", header.flags, flags));
  if (header.count != count) refuse(traits, expected("count", header.count, count));
  if (header.body_bytes != body_bytes) {
    refuse(traits, expected("body_bytes", header.body_bytes, body_bytes));
  }
  if (payload.size() - kHeaderBytes != body_bytes) {
    refuse(traits, expected("size of the body", payload.size() - kHeaderBytes, body_bytes));
  }
  return payload.subspan(kHeaderBytes);
}

void refuse_payload(const CompressorTraits& traits, const char* what) {
  refuse(traits, what);
}

}  // namespace tersum::compressors
