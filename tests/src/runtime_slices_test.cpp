// Calls in slices, and operations that wait for something outside the engine.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "src/collectives/collectives.hpp"
#include "src/engine/external_event.hpp"
#include "src/support.hpp"

namespace tersum::test {
namespace {

using runtime::ExternalEvent;
using runtime::Operation;
using runtime::Signature;
using runtime::Task;

constexpr int kSlices = 4;

Signature signature_of(std::uint64_t count) {
  Signature signature;
  signature.kind = runtime::CallKind::AllReduce;
  signature.count = count;
  signature.step = runtime::kDeviceMemory;
  return signature;
}

/// Starts one operation for each signature as a slice of one call.
std::vector<Work> start(Communicator& communicator, const std::vector<Signature>& signatures,
                        const Operation::Body& body) {
  auto& engine = communicator.state()->session->engine();
  std::vector<Work> works;
  std::vector<std::shared_ptr<Operation>> slices;
  for (const Signature& signature : signatures) {
    auto state = std::make_shared<WorkState>();
    works.emplace_back(state);
    slices.push_back(std::make_shared<Operation>(engine, communicator.state()->group, signature,
                                                 state, kHang, body));
  }
  engine.submit(runtime::make_command([&engine, slices] { engine.start_slices(slices); }));
  return works;
}

Task<> meet(Operation& op) {
  return runtime::barrier(op);
}

TEST(Slices, GoOnTheirOwnInOneCall) {
  World world = make_world(3);
  each_rank(3, [&](int rank) {
    auto& communicator = world[static_cast<std::size_t>(rank)];
    for (int call = 0; call < 20; ++call)
      for (const Work& work :
           start(communicator, std::vector<Signature>(kSlices, signature_of(7)), meet))
        EXPECT_TRUE(succeeds(work));
  });
}

TEST(Slices, AllFailWhenOneDoes) {
  World world = make_world(2);
  each_rank(2, [&](int rank) {
    auto& communicator = world[static_cast<std::size_t>(rank)];
    std::vector<Signature> signatures(kSlices, signature_of(7));
    if (rank == 1) signatures[2].count = 8;
    for (const Work& work : start(communicator, signatures, meet)) {
      const Status status = outcome(work);
      // Those that had ended well before stay so.
      EXPECT_TRUE(status.is_ok() || status.code() == Code::Mismatch) << status.to_string();
    }
    EXPECT_TRUE(succeeds(communicator.barrier()));
  });
}

TEST(Slices, FailToTheLastWhereTheNewsCameBeforeThem) {
  World world = make_world(2);
  const auto refuse = [](Operation&) -> Task<> {
    throw Error(Code::OutOfMemory, "no room");
    co_return;
  };
  const std::vector<Signature> signatures(kSlices, signature_of(7));
  for (const Work& work : start(world[0], signatures, refuse))
    EXPECT_EQ(outcome(work).code(), Code::OutOfMemory);
  for (const Work& work : start(world[1], signatures, meet))
    EXPECT_EQ(outcome(work).code(), Code::OutOfMemory);
  each_rank(
      2, [&](int rank) { EXPECT_TRUE(succeeds(world[static_cast<std::size_t>(rank)].barrier())); });
}

/// What a body waits for before it meets the others.
Operation::Body after(ExternalEvent& event) {
  return [&event](Operation& op) -> Task<> {
    auto happened = event.in(op);
    co_await happened;
    Task<> meeting = runtime::barrier(op);
    co_await meeting;
  };
}

void happen(Communicator& communicator, ExternalEvent& event, const Status& status = {}) {
  communicator.state()->session->run_on_engine([&] { event.happen(status); });
}

TEST(ExternalEvents, LetOperationsGoOnWheneverTheyHappen) {
  World world = make_world(2);
  ExternalEvent before, later;
  const Operation::Body waits_before = after(before), waits_later = after(later);
  happen(world[0], before);
  const auto first = start(world[0], {signature_of(1)}, waits_before);
  const auto second = start(world[1], {signature_of(1)}, waits_later);
  EXPECT_FALSE(second[0].wait(std::chrono::milliseconds(20)));
  EXPECT_FALSE(first[0].done());
  happen(world[1], later);
  EXPECT_TRUE(succeeds(first[0]));
  EXPECT_TRUE(succeeds(second[0]));
}

TEST(ExternalEvents, FailOperationsOnAllRanks) {
  World world = make_world(2);
  ExternalEvent bad;
  const Operation::Body waits = after(bad);
  const auto first = start(world[0], {signature_of(1)}, waits);
  const auto second = start(world[1], {signature_of(1)}, meet);
  happen(world[0], bad, Status(Code::System, "the device has failed"));
  happen(world[0], bad);  // the first time counts
  for (const Work& work : {first[0], second[0]}) {
    EXPECT_EQ(outcome(work).code(), Code::System);
    EXPECT_EQ(work.status().message(), "the device has failed");
  }
}

}  // namespace
}  // namespace tersum::test
