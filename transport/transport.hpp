// How bytes move: the interface of every transport. It knows messages, not gradients.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tersum/error.hpp"
#include "tersum/types.hpp"

namespace tersum::transport {

/// Names one message between two ranks. A receive meets the message of the same peer with an equal
/// key; messages with equal keys meet receives in the order in which they were sent.
struct Key {
  std::uint32_t communicator = 0;
  std::uint32_t slice = 0;
  std::uint64_t operation = 0;
  std::uint64_t hop = 0;
  friend bool operator==(const Key&, const Key&) = default;
};

/// What travels in front of the bytes. The transport looks at the key only; the note is its user's.
struct Envelope {
  Key key;
  std::array<std::uint64_t, 4> note{};
};

/// One posted send or receive. The caller owns it and keeps it, and the buffer, alive until
/// on_complete() has been called, exactly once, from progress(), never from inside the posting
/// call.
class Request {
 public:
  virtual ~Request() = default;
  /// `bytes`: what arrived (receives) or was sent. The buffer is not touched any more.
  virtual void on_complete(const Status& status, std::size_t bytes) = 0;

 private:
  friend class RequestAccess;  // lets a transport keep its own word in here
  void* transport_data_ = nullptr;
};
class RequestAccess {
 public:
  static void*& data(Request& request) noexcept { return request.transport_data_; }
};

/// Hears of what nobody posted for. Called from progress().
class Listener {
 public:
  enum class Verdict { Keep, Drop };
  virtual ~Listener() = default;
  /// Every message, before it is matched. Drop: it is released unread (its sender completes
  /// normally).
  virtual Verdict on_arrival(int peer, const Envelope& envelope, std::size_t bytes) = 0;
  /// A peer cannot be reached any more. All requests with it complete with PeerLost afterwards. At
  /// most once a peer.
  virtual void on_peer_failure(int peer, const Status& status) = 0;
};

struct Capabilities {
  bool device_memory = false;  ///< MemoryType::Cuda buffers can be posted
  bool crosses_hosts = false;
  bool blocking_wait = true;  ///< descriptor() and arm() work
};

/// Moves messages between the ranks of one job. One thread calls everything (the engine's); nothing
/// blocks but connect() and close(). Messages of 0 bytes are messages. A rank may send to itself.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const noexcept = 0;
  virtual Capabilities capabilities() const noexcept = 0;

  /// What other ranks need to reach this one; opaque.
  virtual std::vector<std::byte> address() const = 0;

  /// Who is who: addresses[r] is rank r's, this rank's own included. Once, before any other call
  /// below. Throws Error.
  virtual void connect(int rank, const std::vector<std::vector<std::byte>>& addresses,
                       Listener& listener) = 0;

  /// Makes long-lived memory known to the network: give what this returns as the registration of
  /// buffers inside it. The memory stays until close(). Null if this transport has no use for it.
  /// Throws Error System.
  virtual void* register_memory(const Buffer& memory) = 0;

  /// How messages travel to `peer`, in words for people; empty if it has not been decided.
  virtual std::string route(int peer) = 0;

  /// Starts to send buffer to `peer`. The envelope is copied.
  virtual void post_send(int peer, const Envelope& envelope, ConstBuffer buffer,
                         Request& request) = 0;

  /// Starts to receive the message `key` from `peer`. A message longer than the buffer completes
  /// the receive with Mismatch and is dropped; a shorter one is fine.
  virtual void post_receive(int peer, const Key& key, Buffer buffer, Request& request) = 0;

  /// Asks to end a posted request early: it completes soon, with Aborted, or normally if it was on
  /// its way. A send whose peer never receives may stay until disconnect().
  virtual void cancel(Request& request) = 0;

  /// Releases all kept (unmatched) messages of one operation, of all peers.
  virtual void drop(std::uint32_t communicator, std::uint64_t operation) = 0;

  /// Moves things on and calls back. True if anything happened. Never called from inside a
  /// callback.
  virtual bool progress() = 0;

  /// A pollable descriptor, and its protocol: arm() returns true if nothing is pending, and then
  /// the descriptor becomes readable when something is; false means: call progress() again.
  virtual int descriptor() const = 0;
  virtual bool arm() = 0;

  /// Gives a peer up: its requests complete with `cause`, its messages are ignored from now on. No
  /// call to on_peer_failure().
  virtual void disconnect(int peer, const Status& cause) = 0;

  /// Ends all connections: flushes what was sent for at most `deadline`, then by force. Pending
  /// requests complete with Aborted before it returns. After it only the destructor may be called.
  virtual void close(std::chrono::milliseconds deadline) noexcept = 0;
};

}  // namespace tersum::transport

template <>
struct std::hash<tersum::transport::Key> {
  std::size_t operator()(const tersum::transport::Key& key) const noexcept {
    std::uint64_t h = key.operation * 0x9e3779b97f4a7c15ull;
    h ^= (std::uint64_t{key.communicator} << 32 | key.slice) + 0x7f4a7c159e3779b9ull + (h << 6) +
         (h >> 2);
    h ^= key.hop * 0xff51afd7ed558ccdull + (h << 6) + (h >> 2);
    return static_cast<std::size_t>(h ^ (h >> 29));
  }
};
