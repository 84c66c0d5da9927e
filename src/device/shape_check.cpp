#include "src/device/shape_check.hpp"

#include <algorithm>
#include <string>

#include "src/collectives/collectives.hpp"

namespace tersum::runtime {
namespace {

constexpr std::uint64_t kCountsHop = kBarrierHops - 1;  // no data travel on it
constexpr std::size_t kMostShapes = 4096;  // programs with more than that pay for each otherwise

std::uint64_t digest_of(const Signature& signature) {
  std::uint64_t digest = 0;
  for (const std::uint64_t word : signature.to_note()) digest = mix(digest, word);
  return digest;
}

}  // namespace

std::shared_ptr<WorkState> ShapeCheck::begin(const DeviceCall& call) {
  if (call.kind == CallKind::PointToPoint || group_->size() == 1) return nullptr;
  const Signature signature = signature_of(call);
  const bool uneven = call.kind == CallKind::AllToAllV;
  if (!uneven && (seen_.size() >= kMostShapes || !seen_.insert(digest_of(signature)).second))
    return nullptr;
  Operation::Body body = [](Operation& op) { return barrier(op); };
  if (uneven)
    body = [sends = call.send_counts, receives = call.receive_counts](Operation& op) {
      return compare_counts(op, sends, receives);
    };
  auto work = std::make_shared<WorkState>();
  auto operation =
      std::make_shared<Operation>(engine_, group_, signature, work, timeout_, std::move(body));
  operation->on_end = [engine = &engine_, group = group_](const Status& status) {
    if (status.code() == Code::Mismatch) engine->fail_group(*group, status, true);
  };
  engine_.submit(make_command(
      [engine = &engine_, operation]() mutable { engine->start(std::move(operation)); }));
  last_ = work;
  return work;
}

Task<> compare_counts(Operation& op, std::vector<std::size_t> send_counts,
                      std::vector<std::size_t> receive_counts) {
  const int ranks = op.size(), rank = op.rank();
  constexpr std::size_t kBytes = sizeof(std::uint64_t);
  const auto at = [](int r) { return static_cast<std::size_t>(r) * kBytes; };
  const auto announced = op.scratch(at(ranks)), told = op.scratch(at(ranks));
  std::copy(send_counts.begin(), send_counts.end(),
            reinterpret_cast<std::uint64_t*>(announced.data()));
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(from, kCountsHop, write_view(told.data(), at(from), kBytes)));
  }
  for (int d = 1; d < ranks; ++d) {
    const int to = (rank + d) % ranks;
    sends.push_back(op.send(to, kCountsHop, read_view(announced.data(), at(to), kBytes)));
  }
  for (auto& transfer : receives) co_await transfer;
  for (auto& transfer : sends) co_await transfer;
  for (int r = 0; r < ranks; ++r) {
    const auto theirs = reinterpret_cast<const std::uint64_t*>(told.data())[r];
    const std::size_t expected = receive_counts[static_cast<std::size_t>(r)];
    if (r != rank && theirs != expected)
      throw Error(Code::Mismatch, "rank " + std::to_string(r) + " sent " + std::to_string(theirs) +
                                      " elements to rank " + std::to_string(rank) +
                                      ", which expected " + std::to_string(expected));
  }
  Task<> agreed = dissemination(op, 1);
  co_await agreed;
}

}  // namespace tersum::runtime
