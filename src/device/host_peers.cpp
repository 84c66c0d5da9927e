#include "src/device/host_peers.hpp"

#include <utility>

#include "cuda/device.hpp"
#include "src/session.hpp"

namespace tersum::runtime {

HostPeers::HostPeers(Session& session, std::shared_ptr<Group> group)
    : session_(session), group_(std::move(group)), device_(gpu::current_device()) {}

void HostPeers::connect(bool compressed) {
  const gpu::DeviceGuard guard(device_);
  std::shared_ptr<PeerLinks> former;
  session_.run_on_engine([&] {
    turns_.abort();
    ended_meanwhile_ = false;
    former = std::exchange(links_, nullptr);
  });
  former.reset();  // given back first: it may be what comes again
  auto links = take_peer_links(session_, group_, LinkUse::Engine);
  if (compressed) links->open_compressed(session_, group_);
  session_.run_on_engine([&] {
    links_ = std::move(links);
    if (ended_meanwhile_)
      links_->peers.abort();
    else
      turns_.reset();
  });
}

void HostPeers::abort() noexcept {
  turns_.abort();
  ended_meanwhile_ = true;
  if (links_) links_->peers.abort();
}

}  // namespace tersum::runtime
