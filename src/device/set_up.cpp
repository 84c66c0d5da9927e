#include "src/device/set_up.hpp"

#include <algorithm>

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

}  // namespace tersum::runtime
