// What the control plane says on the wire: frames, their bodies, and how they are sealed. All
// numbers are little-endian. Everything decoded here is untrusted: a decoder either gives a value
// within the limits below or throws Error Protocol.
//
//   frame   u32 length of the rest | u8 type | body | tag (16 bytes, sealed types only)
//
// Greeting, Hello and Refused travel before a session key exists and carry no tag.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tersum/error.hpp"
#include "transport/control.hpp"
#include "transport/hmac.hpp"

namespace tersum::transport::control {

inline constexpr std::uint16_t kProtocolVersion = 1;

// Limits on what a peer may send.
inline constexpr std::size_t kMaxNameBytes = 1024;  ///< job name, host id
inline constexpr std::size_t kMaxAddressBytes = 64u << 10;
inline constexpr std::size_t kMaxSettingsBytes = 32u << 10;
inline constexpr std::size_t kMaxMessageBytes = 64u << 10;  ///< of a Status; longer ones are cut
inline constexpr std::size_t kMaxBlobBytes = 256u << 20;
inline constexpr std::size_t kChunkBytes = 256u << 10;
inline constexpr int kMaxSize = 65536;
inline constexpr std::size_t kTagBytes = 16;

/// Largest frames: of a server to somebody unknown, of a client before and after it is known.
inline constexpr std::size_t kGreetingCap = 128;
inline constexpr std::size_t kHelloCap =
    2 * kMaxNameBytes + kMaxAddressBytes + kMaxSettingsBytes + 512;
inline constexpr std::size_t kMemberCap = 512u << 10;
/// Largest table of `size` ranks.
std::size_t table_cap(int size) noexcept;

enum class FrameType : std::uint8_t {
  Greeting = 0x01,   ///< server: magic, version, nonce
  Hello = 0x02,      ///< client: who it is, with HMAC under the job's secret
  Refused = 0x03,    ///< server, to one that has not proved to know the secret: reason
  Accepted = 0x10,   ///< server: known; server's clock. Wait for the table
  Table = 0x11,      ///< server: all members; the join is complete
  Verdict = 0x12,    ///< server: the join has failed; why
  Heartbeat = 0x13,  ///< both ways
  Report = 0x14,     ///< client: a cause of failure
  Failure = 0x15,    ///< server: the first cause
  Chunk = 0x16,      ///< client: a part of its blob
  GoodBye = 0x17,    ///< client: leaves; bytes of its blob
  Left = 0x18,       ///< server: ranks that have said good-bye
  Farewell = 0x19,   ///< server: all have; close
};
/// True for the types that carry a tag.
constexpr bool is_sealed(FrameType type) noexcept {
  return static_cast<int>(type) >= 0x10;
}

struct Greeting {
  std::uint16_t version = kProtocolVersion;
  Nonce nonce{};
};

struct Hello {
  std::uint16_t version = kProtocolVersion;
  std::string job;
  int rank = 0;
  int size = 0;
  Nonce nonce{};
  std::chrono::milliseconds patience{};  ///< how long the rank will wait from now on
  std::string settings;
  Member member;
};

/// Why rank 0 turns away somebody who has not proved to know the secret.
enum class Refusal : std::uint8_t { Version = 1, Job = 2, Secret = 3, Malformed = 4 };
/// What it means for the one refused, with the remedy: "wrong secret: check TERSUM_SECRET".
std::string to_string(Refusal refusal);

struct Accepted {
  std::int64_t clock_ns = 0;  ///< rank 0's steady clock when the hello came in
};

/// The key of the join: the secret, or without one (no protection, only against mix-ups) the job's
/// name.
Bytes join_key(const std::string& secret, const std::string& job);
/// The key of one connection after the hello.
Digest session_key(ByteView key, const Nonce& server, const Nonce& client);

Bytes encode(const Greeting& greeting);
Bytes encode(const Hello& hello, ByteView key, const Nonce& server);
Bytes encode(Refusal refusal);
Bytes encode(const Accepted& accepted);
Bytes encode(const std::vector<Member>& members);
Bytes encode(const Status& status);
Bytes encode(const std::vector<int>& ranks);
Bytes encode_count(std::uint64_t value);

Greeting decode_greeting(ByteView body);
/// Only the version needs to be known for the other fields to be read: a hello of another version
/// comes back with nothing else in it.
Hello decode_hello(ByteView body);
/// Whether the hello was made with `key` in answer to the greeting with nonce `server`.
bool is_authentic(ByteView hello_body, ByteView key, const Nonce& server);
Refusal decode_refusal(ByteView body);
Accepted decode_accepted(ByteView body);
std::vector<Member> decode_table(ByteView body, int size);
/// Never Ok.
Status decode_status(ByteView body);
/// Ranks in [0, size).
std::vector<int> decode_ranks(ByteView body, int size);
std::uint64_t decode_count(ByteView body);

/// Tags the frames of one direction of one connection: HMAC over direction, running number, type
/// and body, cut to 16 bytes. Frames cannot be changed, repeated, left out or swapped unseen.
class Seal {
 public:
  enum class Direction : std::uint8_t { FromServer = 0, FromClient = 1 };
  using Tag = std::array<std::byte, kTagBytes>;

  Seal(const Digest& key, Direction direction) : key_(key), direction_(direction) {}
  /// The tag of the next frame.
  Tag next(FrameType type, ByteView body);

 private:
  Digest key_;
  Direction direction_;
  std::uint64_t counter_ = 0;
};

/// Cuts a stream of bytes into frames.
class FrameSplitter {
 public:
  struct Frame {
    FrameType type;
    ByteView rest;  ///< body and tag; valid until the next call
  };

  explicit FrameSplitter(std::size_t cap) : cap_(cap) {}
  /// Bytes allowed in a frame from now on, length field not counted.
  void set_cap(std::size_t cap) noexcept { cap_ = cap; }
  void append(ByteView bytes);
  /// Whether bytes are waiting, be they a whole frame or not.
  bool has_bytes() const noexcept { return begin_ < buffer_.size(); }
  /// The next complete frame. Error Protocol if its length is 0 or over the cap, as soon as the
  /// length is known.
  std::optional<Frame> next();

 private:
  std::size_t cap_;
  Bytes buffer_;
  std::size_t begin_ = 0;
};

}  // namespace tersum::transport::control
