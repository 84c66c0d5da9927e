#include "transport/control_link.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace tersum::transport::control {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kReadsPerTurn = 16;                 // then other sockets have their turn
constexpr std::size_t kBytesPerFlush = 1u << 20;  // likewise
constexpr std::size_t kBuffersPerWrite = 3 * 16;

}  // namespace

Body::Body(Bytes&& own) {
  auto shared = std::make_shared<const Bytes>(std::move(own));
  bytes = *shared;
  owner = std::move(shared);
}

Link::Link(tcp::socket socket, std::size_t cap) : socket_(std::move(socket)), splitter_(cap) {
  error_code ignored;  // a socket that died meanwhile tells so when it is read
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
}

void Link::read(FrameHandler on_frame, EndHandler on_end) {
  on_frame_ = std::move(on_frame);
  on_end_ = std::move(on_end);
  reading_ = true;
  has_spoken_ = false;
  if (!splitter_.has_bytes() && !input_over_) {
    wait_readable();
    return;
  }
  // What was kept over a pause makes no socket readable.
  boost::asio::post(socket_.get_executor(), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->read_now();
    self->wait_readable();
  });
}

void Link::wait_readable() {
  if (waiting_read_ || closed_ || !reading_) return;
  waiting_read_ = true;
  socket_.async_wait(tcp::socket::wait_read, [weak = weak_from_this()](const error_code&) {
    const auto self = weak.lock();
    if (!self) return;
    self->waiting_read_ = false;
    self->read_now();
    self->wait_readable();
  });
}

void Link::read_now() {
  if (closed_ || !reading_ || delivering_) return;
  delivering_ = true;
  const auto self = shared_from_this();
  deliver_frames();
  for (int i = 0; i < kReadsPerTurn && reading_ && !closed_ && !input_over_; ++i) {
    std::array<std::byte, kReadBytes> chunk;
    error_code error;
    const std::size_t count = socket_.read_some(boost::asio::buffer(chunk), error);
    if (error == boost::asio::error::would_block || error == boost::asio::error::interrupted) break;
    if (error == boost::asio::error::eof) {
      input_over_.emplace(Code::PeerLost, "connection closed");
    } else if (error) {
      input_over_.emplace(Code::PeerLost, "connection lost: " + error.message());
    } else {
      last_heard_ = Clock::now();
      if (!closing_) splitter_.append(ByteView(chunk).first(count));
    }
    deliver_frames();
  }
  delivering_ = false;
  if (input_over_ && reading_ && !closed_) end(*input_over_);
}

void Link::deliver_frames() {
  try {
    while (reading_ && !closed_ && !closing_) {
      const auto frame = splitter_.next();
      if (!frame) return;
      deliver(*frame);
    }
  } catch (const Error& error) {
    if (!closed_) input_over_ = error.status();
    closing_ = true;  // nothing after a fault is looked at
  }
}

void Link::deliver(const FrameSplitter::Frame& frame) {
  has_spoken_ = true;
  if (!is_sealed(frame.type)) {
    on_frame_(frame.type, frame.rest);
    return;
  }
  if (!seal_in_ || frame.rest.size() < kTagBytes) {
    throw Error(Code::Protocol, "a control message without a seal");
  }
  const ByteView body = frame.rest.first(frame.rest.size() - kTagBytes);
  if (!equal_in_constant_time(seal_in_->next(frame.type, body), frame.rest.last(kTagBytes))) {
    throw Error(Code::Protocol, "a control message with a wrong seal");
  }
  on_frame_(frame.type, body);
}

void Link::end(const Status& why) {
  reading_ = false;
  if (on_end_) on_end_(why);
}

void Link::seal(const Digest& session_key, bool is_server) {
  seal_out_.emplace(session_key,
                    is_server ? Seal::Direction::FromServer : Seal::Direction::FromClient);
  seal_in_.emplace(session_key,
                   is_server ? Seal::Direction::FromClient : Seal::Direction::FromServer);
}

void Link::send(FrameType type, Body body) {
  if (closed_ || closing_ || output_dead_) return;
  Outgoing out;
  out.body = std::move(body);
  if (is_sealed(type)) {
    if (!seal_out_) throw Error(Code::Internal, "a sealed control message before the handshake");
    out.tag = seal_out_->next(type, out.body.bytes);
    out.tag_bytes = out.tag.size();
  }
  const auto length = static_cast<std::uint32_t>(out.size() - sizeof(std::uint32_t));
  for (std::size_t i = 0; i < sizeof(length); ++i) {
    out.head[i] = static_cast<std::byte>((length >> (8 * i)) & 0xff);
  }
  out.head[4] = static_cast<std::byte>(type);
  queue_.push_back(std::move(out));
  flush();
}

void Link::set_refill(std::function<bool()> refill) {
  refill_ = std::move(refill);
  flush();
}

void Link::flush() {
  if (flushing_ || waiting_write_ || closed_) return;
  flushing_ = true;
  std::size_t written = 0;
  while (!output_dead_) {
    if (queue_.empty() && (closing_ || !refill_ || !refill_())) break;
    const std::size_t count = written < kBytesPerFlush ? write_some() : 0;
    written += count;
    if (count == 0) {
      if (!output_dead_) wait_writable();
      break;
    }
  }
  flushing_ = false;
  shut_down_if_flushed();
}

std::size_t Link::write_some() {
  std::vector<boost::asio::const_buffer> buffers;
  std::size_t skip = front_written_;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    const std::size_t cut = std::min(skip, bytes);
    skip -= cut;
    if (bytes > cut) buffers.emplace_back(data + cut, bytes - cut);
  };
  for (const Outgoing& out : queue_) {
    if (buffers.size() + 3 > kBuffersPerWrite) break;
    add(out.head.data(), out.head.size());
    add(out.body.bytes.data(), out.body.bytes.size());
    add(out.tag.data(), out.tag_bytes);
  }
  error_code error;
  const std::size_t written = socket_.write_some(buffers, error);
  if (!error) {
    consume(written);
    return written;
  }
  if (error != boost::asio::error::would_block && error != boost::asio::error::interrupted) {
    // The end of the connection is told by reading: there may be news before it.
    output_dead_ = true;
    drop_output();
  }
  return 0;
}

void Link::drop_output() noexcept {
  queue_.clear();
  front_written_ = 0;
}

void Link::consume(std::size_t written) {
  front_written_ += written;
  while (!queue_.empty() && front_written_ >= queue_.front().size()) {
    front_written_ -= queue_.front().size();
    queue_.pop_front();
  }
}

void Link::wait_writable() {
  if (waiting_write_ || closed_) return;
  waiting_write_ = true;
  socket_.async_wait(tcp::socket::wait_write, [weak = weak_from_this()](const error_code&) {
    const auto self = weak.lock();
    if (!self) return;
    self->waiting_write_ = false;
    self->flush();
  });
}

void Link::close_after_flush() {
  closing_ = true;
  flush();
  shut_down_if_flushed();
}

void Link::shut_down_if_flushed() noexcept {
  if (!closing_ || closed_ || shut_down_ || !queue_.empty()) return;
  shut_down_ = true;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void Link::close() noexcept {
  if (closed_) return;
  closed_ = true;
  reading_ = false;
  error_code ignored;
  socket_.close(ignored);
}

void Link::discard_input() noexcept {
  std::array<std::byte, kReadBytes> chunk;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    error_code error;
    socket_.read_some(boost::asio::buffer(chunk), error);
    if (error == boost::asio::error::would_block || error == boost::asio::error::interrupted)
      return;
    if (error) {
      input_over_.emplace(Code::PeerLost, "connection closed");
      return;
    }
  }
}

bool Link::drained(Clock::time_point flush_until, Clock::time_point drain_until) noexcept {
  if (closed_) return true;
  const auto now = Clock::now();
  while (!queue_.empty() && write_some() > 0) {
  }
  if (!queue_.empty() && now < flush_until) {
    if (!input_over_) discard_input();  // the peer may be unable to read before it has written
    return false;
  }
  closing_ = true;
  drop_output();
  shut_down_if_flushed();
  if (!input_over_) discard_input();
  return input_over_.has_value() || now >= drain_until;
}

void Link::finish(const std::vector<std::shared_ptr<Link>>& links, std::chrono::milliseconds flush,
                  std::chrono::milliseconds drain) noexcept {
  const auto flush_until = Clock::now() + flush;
  std::vector<std::shared_ptr<Link>> open = links;
  for (const auto& link : open) link->refill_ = nullptr;
  Clock::time_point drain_until = Clock::now() + drain;
  for (;;) {
    std::erase_if(open, [&](const auto& link) {
      if (!link->drained(flush_until, drain_until)) return false;
      link->close();
      return true;
    });
    if (open.empty()) return;
    std::vector<pollfd> polled;
    bool writing = false;
    for (const auto& link : open) {
      const bool wants = !link->queue_.empty();
      writing |= wants;
      polled.push_back(
          {link->socket_.native_handle(), static_cast<short>(POLLIN | (wants ? POLLOUT : 0)), 0});
    }
    // The time to drain counts from when all is out.
    if (writing) drain_until = Clock::now() + drain;
    const auto until = writing ? flush_until : drain_until;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<long>(left, 0, 1000)));
  }
}

}  // namespace tersum::transport::control
