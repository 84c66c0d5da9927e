// The other ranks of the running control plane: one connection, to rank 0.
#include <algorithm>
#include <memory>
#include <utility>

#include "transport/control_core.hpp"

namespace tersum::transport::control {
namespace {

class Client final : public Core {
 public:
  Client(boost::asio::io_context& context, const JoinRequest& request, Enrolled enrolled)
      : Core(context, request, std::move(enrolled.members), enrolled.clock_offset),
        link_(std::move(enrolled.link)) {}

  void report(const Status& cause) override {
    if (!failed() && !complete()) link_->send(FrameType::Report, encode(cause));
  }

 private:
  std::weak_ptr<Client> weak() { return std::static_pointer_cast<Client>(shared_from_this()); }

  void on_start() override;
  void on_tick() override;
  void on_leaving(Bytes blob) override;
  bool nothing_to_wait_for() const override {
    return link_->closed() || (said_good_bye_ && link_->flushed());
  }
  std::vector<std::shared_ptr<Link>> links() const override { return {link_}; }

  void on_frame(FrameType type, ByteView body);
  void on_end(const Status& why);
  bool send_next();
  void fail(const Status& cause);

  std::shared_ptr<Link> link_;
  std::shared_ptr<const Bytes> blob_;
  std::size_t blob_sent_ = 0;
  bool said_good_bye_ = false;
};

void Client::on_start() {
  link_->read(
      [weak = weak()](FrameType type, ByteView body) {
        if (const auto client = weak.lock()) client->on_frame(type, body);
      },
      [weak = weak()](const Status& why) {
        if (const auto client = weak.lock()) client->on_end(why);
      });
}

void Client::on_tick() {
  beat(*link_);
  if (const auto cause = silence(*link_, 0)) fail(*cause);
}

void Client::on_frame(FrameType type, ByteView body) {
  switch (type) {
    case FrameType::Heartbeat:
      return;
    case FrameType::Failure:
      return fail(decode_status(body));
    case FrameType::Left:
      for (const int left : decode_ranks(body, size())) {
        if (left != rank()) tell_leave(left);
      }
      return;
    case FrameType::Farewell:
      set_complete();
      return check_done();
    default:
      throw Error(Code::Protocol, "an unexpected control message");
  }
}

void Client::on_end(const Status& why) {
  link_->close();
  fail(loss(0, why));
  check_done();
}

void Client::fail(const Status& cause) {
  if (record_failure(cause)) check_done();
}

void Client::on_leaving(Bytes blob) {
  blob_ = std::make_shared<const Bytes>(std::move(blob));
  link_->set_refill([weak = weak()] {
    const auto client = weak.lock();
    return client && client->send_next();
  });
}

/// The next part of the blob, and at last the good-bye. Only when the one before is out, so that
/// heartbeats and reports find their way in between.
bool Client::send_next() {
  if (said_good_bye_) {
    if (failed()) later([this] { check_done(); });
    return false;
  }
  const std::size_t count = std::min(kChunkBytes, blob_->size() - blob_sent_);
  if (count == 0) {
    said_good_bye_ = true;
    link_->send(FrameType::GoodBye, encode_count(blob_->size()));
    blob_.reset();
    return true;
  }
  link_->send(FrameType::Chunk, Body(blob_, ByteView(*blob_).subspan(blob_sent_, count)));
  blob_sent_ += count;
  return true;
}

}  // namespace

std::shared_ptr<Core> make_client(boost::asio::io_context& context, const JoinRequest& request,
                                  Enrolled enrolled) {
  return std::make_shared<Client>(context, request, std::move(enrolled));
}

}  // namespace tersum::transport::control
