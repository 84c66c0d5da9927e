// Rank 0 of the running control plane: hears of everything first and tells everybody.
#include <algorithm>
#include <memory>
#include <utility>

#include "transport/control_core.hpp"

namespace tersum::transport::control {
namespace {

class Server final : public Core {
 public:
  Server(boost::asio::io_context& context, const JoinRequest& request, Admitted admitted)
      : Core(context, request, std::move(admitted.members), {}), peers_(admitted.links.size()) {
    for (std::size_t i = 0; i < peers_.size(); ++i) peers_[i].link = std::move(admitted.links[i]);
  }

  void report(const Status& cause) override { fail(cause); }

 private:
  struct Peer {
    std::shared_ptr<Link> link;  // null for rank 0 itself
    Bytes blob;
    bool left = false;
    bool open() const noexcept { return link && !link->closed(); }
  };

  std::shared_ptr<Server> self() { return std::static_pointer_cast<Server>(shared_from_this()); }
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void on_start() override;
  void on_tick() override;
  void on_leaving(Bytes blob) override;
  bool nothing_to_wait_for() const override;
  std::vector<Bytes> take_blobs() override;
  std::vector<std::shared_ptr<Link>> links() const override;

  void on_frame(int from, FrameType type, ByteView body);
  void on_end(int from, const Status& why);
  void on_chunk(Peer& from, ByteView body);
  void on_good_bye(int from, std::uint64_t blob_bytes);
  void on_left(int rank);
  void announce_left();
  void fail(const Status& cause);
  void broadcast(FrameType type, Bytes body);

  std::vector<Peer> peers_;  // [size]
  std::vector<int> newly_left_;
};

void Server::on_start() {
  for (int rank = 1; rank < size(); ++rank) {
    const std::weak_ptr<Server> weak = self();
    peer(rank).link->set_cap(kMemberCap);
    peer(rank).link->read(
        [weak, rank](FrameType type, ByteView body) {
          if (const auto server = weak.lock()) server->on_frame(rank, type, body);
        },
        [weak, rank](const Status& why) {
          if (const auto server = weak.lock()) server->on_end(rank, why);
        });
  }
}

void Server::on_tick() {
  for (int rank = 1; rank < size(); ++rank) {
    if (!peer(rank).open()) continue;
    const std::shared_ptr<Link> link = peer(rank).link;
    beat(*link);
    // A rank that has said good-bye owes nobody anything.
    if (peer(rank).left || failed() || complete()) continue;
    if (const auto cause = silence(*link, rank)) fail(*cause);
  }
}

void Server::on_frame(int from, FrameType type, ByteView body) {
  switch (type) {
    case FrameType::Heartbeat:
      return;
    case FrameType::Report: {
      const Status cause = decode_status(body);
      const bool known = cause.rank() >= 0 && cause.rank() < size();
      return fail({cause.code(), cause.message(), cause.origin(), known ? cause.rank() : -1});
    }
    case FrameType::Chunk:
      return on_chunk(peer(from), body);
    case FrameType::GoodBye:
      return on_good_bye(from, decode_count(body));
    default:
      throw Error(Code::Protocol, "a control message that only rank 0 may send");
  }
}

void Server::on_chunk(Peer& from, ByteView body) {
  if (from.left) throw Error(Code::Protocol, "a part of its good-bye after the good-bye");
  if (from.blob.size() + body.size() > kMaxBlobBytes) {
    throw Error(Code::Protocol, "a good-bye over the limit");
  }
  from.blob.insert(from.blob.end(), body.begin(), body.end());
}

void Server::on_good_bye(int from, std::uint64_t blob_bytes) {
  if (peer(from).left || blob_bytes != peer(from).blob.size()) {
    throw Error(Code::Protocol, "a good-bye that does not fit");
  }
  on_left(from);
}

void Server::on_left(int rank) {
  peer(rank).left = true;
  newly_left_.push_back(rank);
  // One message for all that leave together: they mostly do.
  if (newly_left_.size() == 1) later([this] { announce_left(); });
  check_done();
}

void Server::announce_left() {
  const std::vector<int> ranks = std::exchange(newly_left_, {});
  if (failed()) return;
  broadcast(FrameType::Left, encode(ranks));
  for (const int rank : ranks) {
    if (rank != 0) tell_leave(rank);
  }
  if (!std::ranges::all_of(peers_, [](const Peer& peer) { return peer.left; })) return;
  broadcast(FrameType::Farewell, {});
  set_complete();
  check_done();
}

void Server::on_end(int from, const Status& why) {
  peer(from).link->close();
  if (!peer(from).left) fail(loss(from, why));
  check_done();
}

void Server::fail(const Status& cause) {
  if (!record_failure(cause)) return;
  broadcast(FrameType::Failure, encode(cause));
  check_done();
}

void Server::broadcast(FrameType type, Bytes body) {
  const auto shared = std::make_shared<const Bytes>(std::move(body));
  for (const Peer& peer : peers_) {
    if (peer.open()) peer.link->send(type, shared);
  }
}

void Server::on_leaving(Bytes blob) {
  peer(0).blob = std::move(blob);
  on_left(0);
}

bool Server::nothing_to_wait_for() const {
  return std::ranges::all_of(peers_, [](const Peer& peer) { return !peer.open() || peer.left; });
}

std::vector<Bytes> Server::take_blobs() {
  std::vector<Bytes> blobs;
  for (Peer& peer : peers_) blobs.push_back(peer.left ? std::move(peer.blob) : Bytes{});
  return blobs;
}

std::vector<std::shared_ptr<Link>> Server::links() const {
  std::vector<std::shared_ptr<Link>> open;
  for (const Peer& peer : peers_) {
    if (peer.open()) open.push_back(peer.link);
  }
  return open;
}

}  // namespace

std::shared_ptr<Core> make_server(boost::asio::io_context& context, const JoinRequest& request,
                                  Admitted admitted) {
  return std::make_shared<Server>(context, request, std::move(admitted));
}

}  // namespace tersum::transport::control
