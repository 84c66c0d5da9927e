#include <algorithm>
#include <vector>

#include "src/collectives/collectives.hpp"
#include "src/rethrow.hpp"
#include "src/session.hpp"

namespace tersum {
namespace {

struct SplitEntry {
  std::int64_t color = 0, key = 0, id = 0;
};

}  // namespace

namespace runtime {

/// All ranks tell (color, key, an id for a group that this rank would be the first of); each forms
/// its own group from that. Ids are never given twice, so splits of several communicators may
/// overlap in time.
std::shared_ptr<Group> split_group(const Session& session, const std::shared_ptr<Group>& parent,
                                   int color, int key) {
  auto& engine = session.engine();
  const auto size = static_cast<std::size_t>(parent->size());
  std::vector<SplitEntry> all(size);
  SplitEntry mine{color, key, 0};
  session.run_on_engine([&] { mine.id = engine.new_group_id(); });
  auto work = std::make_shared<WorkState>();
  Signature signature;
  signature.kind = CallKind::Split;
  const std::vector<std::size_t> counts(size, sizeof(SplitEntry));
  auto operation = std::make_shared<Operation>(
      engine, parent, signature, work, session.config().timeout,
      [&](Operation& op) { return all_gather(op, &mine, all.data(), counts, DType::UInt8); });
  engine.submit(
      make_command([&engine, operation]() mutable { engine.start(std::move(operation)); }));
  Work(work).wait();
  if (color < 0) return nullptr;

  std::vector<int> ranks;
  for (int r = 0; r < parent->size(); ++r)
    if (all[static_cast<std::size_t>(r)].color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
  });
  std::vector<int> members;
  int rank = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    members.push_back(parent->world(ranks[i]));
    if (ranks[i] == parent->rank()) rank = static_cast<int>(i);
  }
  const auto id = static_cast<std::uint32_t>(all[static_cast<std::size_t>(ranks.front())].id);
  if (id == 0)
    throw Error(Code::Unsupported, "rank " + std::to_string(members.front()) +
                                       " has been the first of too many groups: split less often");
  return std::make_shared<Group>(id, rank, std::move(members));
}

}  // namespace runtime

Communicator Communicator::split(int color, int key) try {
  if (!state_)
    throw Error(Code::InvalidState,
                "this Communicator is empty: get one from connect() or split()");
  auto group = runtime::split_group(*state_->session, state_->group, color, key);
  if (!group) return {};
  return Communicator(std::make_shared<CommunicatorState>(state_->session, std::move(group)));
} catch (...) {
  rethrow_as_error("split");
}

}  // namespace tersum
