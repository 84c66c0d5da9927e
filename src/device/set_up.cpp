#include "src/device/set_up.hpp"

#include <algorithm>
#include <map>

#include "src/collectives/collectives.hpp"
#include "src/session.hpp"

namespace tersum::runtime {

void run_operation(const Session& session, const std::shared_ptr<Group>& group, std::uint64_t count,
                   const Operation::Body& body) {
  Engine& engine = session.engine();
  Signature signature;
  signature.kind = CallKind::DeviceSetup;
  signature.count = count;
  auto work = std::make_shared<WorkState>();
  auto operation =
      std::make_shared<Operation>(engine, group, signature, work, session.config().timeout, body);
  engine.submit(
      make_command([&engine, operation]() mutable { engine.start(std::move(operation)); }));
  Work(work).wait();
}

std::vector<std::vector<std::byte>> exchange_blobs(const Session& session,
                                                   const std::shared_ptr<Group>& group,
                                                   std::span<const std::byte> own) {
  const auto size = static_cast<std::size_t>(group->size());
  std::vector<std::byte> all(size * own.size());
  const std::vector<std::size_t> counts(size, own.size());
  run_operation(session, group, own.size(), [&](Operation& op) {
    return all_gather(op, own.data(), all.data(), counts, DType::UInt8);
  });
  std::vector<std::vector<std::byte>> blobs;
  for (std::size_t r = 0; r < size; ++r) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * own.size());
    blobs.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(own.size()));
  }
  return blobs;
}

bool agree(const Session& session, const std::shared_ptr<Group>& group, bool value) {
  const std::byte own{value};
  const auto all = exchange_blobs(session, group, std::span(&own, 1));
  return std::all_of(all.begin(), all.end(),
                     [](const auto& blob) { return blob[0] != std::byte{}; });
}

gpu::AllGatherBlobs blobs_of(const Session& session, std::shared_ptr<Group> group) {
  return [&session, group = std::move(group)](std::span<const std::byte> own) {
    return exchange_blobs(session, group, own);
  };
}

gpu::PeerSettings peer_settings(const Session& session, bool copy_engines) {
  gpu::PeerSettings settings;
  settings.copy_engines = copy_engines;
  settings.timeout = session.config().timeout;
  return settings;
}

std::optional<HostLayout> layout_of(const Session& session, const Group& group) {
  std::map<int, std::vector<int>> hosts;
  for (int rank = 0; rank < group.size(); ++rank)
    hosts[session.host_of(group.world(rank))].push_back(rank);
  HostLayout layout;
  layout.host = hosts[session.host_of(group.world())];
  const std::size_t each = layout.host.size();
  if (hosts.size() < 2 || each < 2) return std::nullopt;
  const auto position =
      static_cast<std::size_t>(std::ranges::find(layout.host, group.rank()) - layout.host.begin());
  for (const auto& [host, ranks] : hosts) {
    if (ranks.size() != each) return std::nullopt;
    layout.counterparts.push_back(ranks[position]);
  }
  std::ranges::sort(layout.counterparts);
  return layout;
}

}  // namespace tersum::runtime
