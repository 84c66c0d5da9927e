#include "src/device/shape_check.hpp"

#include "src/collectives/collectives.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kMostShapes = 4096;  // programs with more than that pay for each otherwise

std::uint64_t digest_of(const Signature& signature) {
  std::uint64_t digest = 0;
  for (const std::uint64_t word : signature.to_note()) digest = mix(digest, word);
  return digest;
}

}  // namespace

std::shared_ptr<WorkState> ShapeCheck::begin(const Signature& signature) {
  if (signature.kind == CallKind::PointToPoint || group_->size() == 1) return nullptr;
  if (seen_.size() >= kMostShapes || !seen_.insert(digest_of(signature)).second) return nullptr;
  auto work = std::make_shared<WorkState>();
  auto operation = std::make_shared<Operation>(engine_, group_, signature, work, timeout_,
                                               [](Operation& op) { return barrier(op); });
  operation->on_end = [engine = &engine_, group = group_](const Status& status) {
    if (status.code() == Code::Mismatch) engine->fail_group(*group, status, true);
  };
  engine_.submit(make_command(
      [engine = &engine_, operation]() mutable { engine->start(std::move(operation)); }));
  last_ = work;
  return work;
}

}  // namespace tersum::runtime
