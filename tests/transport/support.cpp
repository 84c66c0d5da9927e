#include "transport/support.hpp"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "transport/faulty_transport.hpp"
#include "transport/loopback_transport.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum::transport::testing {

namespace {

std::vector<std::unique_ptr<Transport>> make_loopback(int ranks) {
  auto hub = std::make_shared<LoopbackHub>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int r = 0; r < ranks; ++r) transports.push_back(make_loopback_transport(hub, r));
  return transports;
}

std::vector<std::unique_ptr<Transport>> make_faulty(int ranks) {
  auto transports = make_loopback(ranks);
  std::uint64_t seed = 1;
  for (auto& transport : transports) {
    FaultPlan plan;
    plan.seed = seed++;
    plan.max_delay = 5;
    plan.reorder = true;
    transport = make_faulty_transport(std::move(transport), plan);
  }
  return transports;
}

Factory ucx(const std::string& transports) {
  return {"ucx_" + transports, [transports](int ranks) {
            std::vector<std::unique_ptr<Transport>> made;
            for (int r = 0; r < ranks; ++r) {
              made.push_back(make_ucx_transport({.transports = transports, .interface = {}}));
            }
            return made;
          }};
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Factory& factory) {
  return stream << factory.name;
}

std::vector<Factory> all_factories() {
  return {
      {"loopback", make_loopback}, {"faulty", make_faulty}, ucx("tcp"), ucx("shm"), ucx("auto")};
}

std::string factory_name(const ::testing::TestParamInfo<Factory>& info) {
  return info.param.name;
}

void connect_all(std::vector<std::unique_ptr<Transport>>& transports,
                 const std::vector<std::unique_ptr<TestListener>>& listeners) {
  std::vector<std::vector<std::byte>> addresses;
  for (const auto& transport : transports) addresses.push_back(transport->address());
  for (std::size_t r = 0; r < transports.size(); ++r) {
    transports[r]->connect(static_cast<int>(r), addresses, *listeners[r]);
  }
}

Job::Job(const Factory& factory, int ranks) : transports_(factory.make(ranks)) {
  for (int r = 0; r < ranks; ++r) listeners_.push_back(std::make_unique<TestListener>());
  connect_all(transports_, listeners_);
}

Job::~Job() {
  for (auto& transport : transports_) {
    if (transport) transport->close(std::chrono::milliseconds(0));
  }
}

bool Job::progress_all() {
  bool any = false;
  for (auto& transport : transports_) {
    if (transport) any |= transport->progress();
  }
  return any;
}

::testing::AssertionResult Job::pump(const std::function<bool()>& done) {
  const auto hang = std::chrono::steady_clock::now() + kHang;
  while (!done()) {
    progress_all();
    if (std::chrono::steady_clock::now() > hang) {
      return ::testing::AssertionFailure() << "it does not end";
    }
  }
  return ::testing::AssertionSuccess();
}

void Job::close(int rank, std::chrono::milliseconds deadline) {
  std::atomic<bool> closed = false;
  std::thread closer([&] {
    (*this)[rank].close(deadline);
    closed = true;
  });
  while (!closed) {
    for (int other = 0; other < size(); ++other) {
      if (other != rank && transports_[static_cast<std::size_t>(other)]) (*this)[other].progress();
    }
  }
  closer.join();
  destroy(rank);
}

void Job::fall_asleep(int rank) {
  while (!(*this)[rank].arm()) progress_all();
}

void Job::settle() {
  for (int quiet = 0; quiet < 1000;) quiet = progress_all() ? 0 : quiet + 1;
}

Envelope envelope(std::uint64_t operation, std::uint64_t hop, std::uint32_t slice,
                  std::uint32_t communicator) {
  Envelope made;
  made.key = {communicator, slice, operation, hop};
  made.note = {operation ^ 1, hop, slice, 0xfeedu};
  return made;
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> made(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(&made[i], &state, 8);
  }
  for (; i < bytes; ++i) made[i] = static_cast<std::byte>(seed + i);
  return made;
}

}  // namespace tersum::transport::testing
