// Ranks for transport tests: requests and listeners that remember, and jobs whose ranks live in one
// process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace tersum::transport::testing {

/// How long a test waits for what must happen before it calls it a hang. Never reached by code that
/// works.
inline constexpr std::chrono::seconds kHang{120};

/// Remembers how it ended.
struct TestRequest : Request {
  int calls = 0;
  Status status;
  std::size_t bytes = 0;

  bool done() const { return calls > 0; }
  void on_complete(const Status& how, std::size_t count) override {
    ++calls;
    status = how;
    bytes = count;
  }
};

/// Remembers what it heard, and answers as told.
struct TestListener : Listener {
  struct Heard {
    int peer;
    Envelope envelope;
    std::size_t bytes;
  };
  std::vector<Heard> arrivals;
  std::vector<std::pair<int, Status>> failures;
  std::function<Verdict(int, const Envelope&)> verdict;

  Verdict on_arrival(int peer, const Envelope& envelope, std::size_t bytes) override {
    arrivals.push_back({peer, envelope, bytes});
    return verdict ? verdict(peer, envelope) : Verdict::Keep;
  }
  void on_peer_failure(int peer, const Status& status) override {
    failures.emplace_back(peer, status);
  }
};

/// A way to make the transports of a job of n ranks.
struct Factory {
  std::string name;
  std::function<std::vector<std::unique_ptr<Transport>>(int ranks)> make;
};
std::ostream& operator<<(std::ostream& stream, const Factory& factory);

/// All that the conformance tests run over.
std::vector<Factory> all_factories();
std::string factory_name(const ::testing::TestParamInfo<Factory>& info);

/// A connected job, driven by one thread or by one thread for each rank.
class Job {
 public:
  Job(const Factory& factory, int ranks);
  ~Job();

  Transport& operator[](int rank) { return *transports_[static_cast<std::size_t>(rank)]; }
  TestListener& listener(int rank) { return *listeners_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(transports_.size()); }

  /// Lets all ranks progress until `done()`. False if that looks like never.
  ::testing::AssertionResult pump(const std::function<bool()>& done);
  /// Closes one rank's transport, while all others go on as they would in threads of their own.
  void close(int rank, std::chrono::milliseconds deadline);
  /// Lets one rank progress until it says that nothing is pending. The others progress too: a
  /// sender whose peer has no room may have nothing to sleep on.
  void fall_asleep(int rank);
  /// Lets all ranks progress until nothing has happened for a while.
  void settle();
  void destroy(int rank) { transports_[static_cast<std::size_t>(rank)].reset(); }

 private:
  bool progress_all();

  std::vector<std::unique_ptr<TestListener>> listeners_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

/// Connects transports that live in one process.
void connect_all(std::vector<std::unique_ptr<Transport>>& transports,
                 const std::vector<std::unique_ptr<TestListener>>& listeners);

Envelope envelope(std::uint64_t operation, std::uint64_t hop = 0, std::uint32_t slice = 0,
                  std::uint32_t communicator = 1);

/// Bytes that depend on position and seed.
std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);

inline ConstBuffer view(const std::vector<std::byte>& bytes) {
  return {bytes.data(), bytes.size()};
}
inline Buffer room(std::vector<std::byte>& bytes) {
  return {bytes.data(), bytes.size()};
}

}  // namespace tersum::transport::testing
