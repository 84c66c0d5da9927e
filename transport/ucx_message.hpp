// What the UCX transport puts in front of a message, and how it holds messages that nobody takes
// yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/matcher.hpp"

namespace tersum::transport {

/// Number of our active message in UCX.
inline constexpr unsigned kMessageId = 1;

/// Header of each active message, in the byte order of the hosts (which UCX requires to be equal).
///
/// | offset | bytes | field                                              |
/// |--------|-------|----------------------------------------------------|
/// | 0      | 2     | magic 0x7453                                       |
/// | 2      | 1     | version of this layout                             |
/// | 3      | 1     | kind                                               |
/// | 4      | 4     | rank of the sender                                 |
/// | 8      | 8     | position among all messages from it to this rank   |
/// | 16     | 56    | envelope                                           |
struct WireHeader {
  static constexpr std::uint16_t kMagic = 0x7453;
  static constexpr std::uint8_t kVersion = 1;
  enum class Kind : std::uint8_t {
    Data = 0,
    Goodbye = 1,  ///< the sender closes in good order; nothing comes after it
    Hangup = 2,   ///< the sender has given the receiver up: no more messages. Outside the sequence
  };

  std::uint16_t magic = kMagic;
  std::uint8_t version = kVersion;
  Kind kind = Kind::Data;
  std::uint32_t source = 0;
  std::uint64_t sequence = 0;
  Envelope envelope;
};
static_assert(sizeof(WireHeader) == 72);

/// Where the bytes of a message are until a receive takes them.
struct Payload {
  enum class Source {
    Transient,   ///< UCX's memory, valid inside its callback only (or there are no bytes)
    Retained,    ///< UCX's memory, to be released
    Rendezvous,  ///< at the sender; `data` is UCX's descriptor, to be received from or released
    Copied,      ///< our own copy
    Self,        ///< the buffer of a send to ourselves, which completes when it is read
  };
  Source source = Source::Transient;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// A message that waits: for its turn in its peer's sequence, or for a receive. As an Operation it
/// is a send to ourselves.
struct UcxArrival : Arrival, Operation {
  WireHeader::Kind message = WireHeader::Kind::Data;
  Payload payload;
  MemoryType memory = MemoryType::Host;  ///< of Self
  std::vector<std::byte> copy;
};

}  // namespace tersum::transport
