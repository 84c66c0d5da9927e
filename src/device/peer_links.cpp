#include "src/device/peer_links.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "src/device/device_pools.hpp"
#include "src/device/set_up.hpp"
#include "src/session.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kMostOffers = 15;

/// What a rank has to offer for a new group: links by their numbers (0: none), and a number for new
/// ones.
struct Offer {
  std::array<std::uint64_t, kMostOffers> idle{};
  std::uint64_t fresh = 0;

  bool has(std::uint64_t number) const noexcept {
    return std::find(idle.begin(), idle.end(), number) != idle.end();
  }
};

std::vector<Offer> exchange_offers(const Session& session, const std::shared_ptr<Group>& group,
                                   const Offer& own) {
  std::vector<Offer> offers;
  for (const auto& blob : exchange_blobs(session, group, std::as_bytes(std::span(&own, 1))))
    std::memcpy(&offers.emplace_back(), blob.data(), sizeof(Offer));
  return offers;
}

}  // namespace

PeerLinks::PeerLinks(const Session& session, const std::shared_ptr<Group>& group, LinkUse given_use,
                     std::uint64_t given_number)
    : members(group->members()),
      device(gpu::current_device()),
      use(given_use),
      number(given_number),
      peers(group->rank(), group->size(), blobs_of(session, group),
            peer_settings(session, use == LinkUse::Calls)) {}

void PeerLinks::open_compressed(const Session& session, const std::shared_ptr<Group>& group) {
  if (!compressed)
    compressed = std::make_unique<gpu::CompressedCommunicator>(peers, blobs_of(session, group));
}

void PeerLinks::renew(const Session& session, const std::shared_ptr<Group>& group) {
  peers.renew(blobs_of(session, group));
  if (compressed) compressed->renew(blobs_of(session, group));
}

std::shared_ptr<DevicePools> make_device_pools() {
  return std::make_shared<DevicePools>();
}

namespace {

using Owned = std::unique_ptr<PeerLinks>;

/// Links that all ranks have given back, if there are any. While ranks talk about them nobody else
/// here gets them.
Owned take_idle(const Session& session, const std::shared_ptr<Group>& group, LinkUse use,
                std::uint64_t& fresh_number) {
  Shelf<PeerLinks>& shelf = session.device_pools()->links;
  const int device = gpu::current_device();
  std::vector<Owned> offered = shelf.take(kMostOffers, [&](const PeerLinks& links) {
    return links.device == device && links.use == use && links.members == group->members();
  });
  Offer own;
  for (std::size_t i = 0; i < offered.size(); ++i) own.idle[i] = offered[i]->number;
  own.fresh = std::uint64_t{static_cast<std::uint32_t>(group->world())} << 32 |
              ++session.device_pools()->links_made;
  std::vector<Offer> offers;
  try {
    offers = exchange_offers(session, group, own);
  } catch (...) {
    for (Owned& links : offered) shelf.put(std::move(links));
    throw;
  }
  fresh_number = offers.front().fresh;
  Owned taken;  // of those that all have the one with the lowest number
  for (Owned& links : offered) {
    const bool common = std::all_of(offers.begin(), offers.end(),
                                    [&](const Offer& offer) { return offer.has(links->number); });
    if (common && (!taken || links->number < taken->number)) std::swap(taken, links);
    if (links) shelf.put(std::move(links));
  }
  return taken;
}

}  // namespace

std::shared_ptr<PeerLinks> take_peer_links(const Session& session,
                                           const std::shared_ptr<Group>& group, LinkUse use) {
  std::uint64_t fresh = 0;
  Owned links = take_idle(session, group, use, fresh);
  if (!links) {
    links = std::make_unique<PeerLinks>(session, group, use, fresh);
  } else {
    try {
      links->renew(session, group);
    } catch (...) {
      session.device_pools()->links.put(std::move(links));
      throw;
    }
  }
  return {links.release(), [pools = std::weak_ptr(session.device_pools())](PeerLinks* lent) {
            Owned back(lent);
            back->peers.abort();
            if (const auto open = pools.lock()) open->links.put(std::move(back));
          }};
}

}  // namespace tersum::runtime
