// One TCP connection of the control plane: whole frames in and out, without blocking.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/ip/tcp.hpp>

#include "transport/control_frames.hpp"

namespace tersum::transport::control {

/// The body of a frame to send: `bytes`, kept alive by `owner` until they are out. Lets one table
/// be sent to thousands of ranks without a copy for each.
struct Body {
  std::shared_ptr<const void> owner;
  ByteView bytes;

  Body() = default;
  Body(Bytes&& own);
  Body(std::shared_ptr<const Bytes> shared) : owner(shared), bytes(*shared) {}
  Body(std::shared_ptr<const void> keep, ByteView part) : owner(std::move(keep)), bytes(part) {}
};

/// Reads and writes are done at once when the socket allows, so a frame handed to send() has
/// normally left the process when send() returns, and how much has left is always known exactly.
/// All calls on the io_context's thread. Handlers are called from that thread's handlers or from
/// read_now(), never from send(); they may close the link, not destroy their own function.
class Link : public std::enable_shared_from_this<Link> {
 public:
  using Clock = std::chrono::steady_clock;
  /// A frame has come; its tag was right. May throw Error: the link ends with it.
  using FrameHandler = std::function<void(FrameType, ByteView body)>;
  /// The connection is over, by the peer or by a fault: PeerLost ("connection closed") or Protocol.
  /// Once.
  using EndHandler = std::function<void(const Status& why)>;

  /// Takes over a connected socket. `cap`: largest frame that the peer may send.
  Link(boost::asio::ip::tcp::socket socket, std::size_t cap);

  /// Calls come from now on, until pause() or close(). Hold no strong reference to what owns the
  /// link.
  void read(FrameHandler on_frame, EndHandler on_end);
  /// No calls until the next read(); what has arrived is kept.
  void pause() noexcept { reading_ = false; }
  /// Reads what has arrived without waiting for its event: before a verdict about silence.
  void read_now();

  /// From now on frames of the sealed types go out and are accepted, with tags.
  void seal(const Digest& session_key, bool is_server);
  void set_cap(std::size_t cap) noexcept { splitter_.set_cap(cap); }

  /// Queues a frame and writes what the socket takes. Ignored on a dead link: reading tells.
  void send(FrameType type, Body body = {});
  /// Called whenever everything is out; sends more and returns true, or returns false.
  void set_refill(std::function<bool()> refill);
  bool flushed() const noexcept { return queue_.empty(); }

  /// Sends what is queued, ignores what comes, and ends when the peer closes. on_end tells.
  void close_after_flush();
  /// Closes at once; no call comes after it.
  void close() noexcept;
  bool closed() const noexcept { return closed_; }

  /// When bytes came in last.
  Clock::time_point last_heard() const noexcept { return last_heard_; }
  /// Whether a frame has come since read() was called.
  bool has_spoken() const noexcept { return has_spoken_; }

  /// Blocks until, on each link, everything queued is out (at most `flush`) and then until the
  /// peer has closed (at most `drain`): a connection closed with unread bytes is reset, which may
  /// destroy what is still on its way to the peer. Then closes them all.
  static void finish(const std::vector<std::shared_ptr<Link>>& links,
                     std::chrono::milliseconds flush, std::chrono::milliseconds drain) noexcept;

 private:
  struct Outgoing {
    std::array<std::byte, 5> head;
    Body body;
    std::array<std::byte, kTagBytes> tag;
    std::size_t tag_bytes = 0;
    std::size_t size() const noexcept { return head.size() + body.bytes.size() + tag_bytes; }
  };

  void wait_readable();
  void wait_writable();
  void deliver_frames();
  void deliver(const FrameSplitter::Frame& frame);
  void end(const Status& why);
  void flush();
  std::size_t write_some();
  void drop_output() noexcept;
  void consume(std::size_t written);
  void shut_down_if_flushed() noexcept;
  bool drained(Clock::time_point flush_until, Clock::time_point drain_until) noexcept;
  void discard_input() noexcept;

  boost::asio::ip::tcp::socket socket_;
  FrameSplitter splitter_;
  FrameHandler on_frame_;
  EndHandler on_end_;
  std::function<bool()> refill_;
  std::optional<Seal> seal_in_;
  std::optional<Seal> seal_out_;
  std::deque<Outgoing> queue_;
  std::size_t front_written_ = 0;
  std::optional<Status> input_over_;  // no more bytes will come; told after those that have
  Clock::time_point last_heard_ = Clock::now();
  bool reading_ = false;
  bool has_spoken_ = false;
  bool delivering_ = false;
  bool waiting_read_ = false;
  bool waiting_write_ = false;
  bool flushing_ = false;
  bool output_dead_ = false;
  bool closing_ = false;
  bool shut_down_ = false;
  bool closed_ = false;
};

}  // namespace tersum::transport::control
