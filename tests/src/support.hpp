// What tests of the runtime share: worlds of ranks inside one process, works that must end, and
// memory with guards.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/session.hpp"
#include "tersum/tersum.hpp"
#include "transport/faulty_transport.hpp"
#include "transport/loopback_transport.hpp"

namespace tersum::test {

using World = std::vector<Communicator>;

/// How long a test waits for what must happen before it calls it a hang. Never reached by code that
/// works.
inline constexpr std::chrono::seconds kHang{60};

/// Settings of test worlds: nothing on stderr.
inline Config quiet(std::chrono::milliseconds timeout = Config().timeout) {
  Config config;
  config.log = "off";
  config.timeout = timeout;
  return config;
}

inline World make_world(int size, const Config& config = quiet()) {
  return make_local_world(size, config);
}

/// A world whose rank r has the faults plans[r].
inline World make_faulty_world(const std::vector<transport::FaultPlan>& plans,
                               const Config& config = quiet()) {
  return make_local_world(static_cast<int>(plans.size()), config,
                          [&](int rank, std::unique_ptr<transport::Transport> inner) {
                            return transport::make_faulty_transport(
                                std::move(inner), plans[static_cast<std::size_t>(rank)]);
                          });
}

/// A world around a hub that the test keeps, so that it can kill ranks.
inline World make_mortal_world(const std::shared_ptr<transport::LoopbackHub>& hub,
                               const Config& config = quiet()) {
  return make_local_world(hub->size(), config,
                          [&](int rank, std::unique_ptr<transport::Transport>) {
                            return transport::make_loopback_transport(hub, rank);
                          });
}

/// Calls function(rank) for 0 <= rank < size, each in a thread of its own. What one of them threw
/// (the first by rank) is thrown here.
template <class Function>
void each_rank(int size, const Function& function) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        function(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (auto& error : errors)
    if (error) std::rethrow_exception(error);
}

/// How the work ended. Fails the test if it does not end.
inline Status outcome(const Work& work) {
  try {
    if (!work.wait(kHang)) ADD_FAILURE() << "the work is still pending";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), work.status().code());
  }
  return work.status();
}

inline ::testing::AssertionResult succeeds(const Work& work) {
  const Status status = outcome(work);
  if (status.is_ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.to_string();
}

/// The code and message of what `function` throws; Ok if it does not throw.
template <class Function>
Status thrown_by(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.status();
  }
  return Status::ok();
}

/// `bytes` of memory, 64-byte aligned, between guards that must not change.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : size_(bytes), memory_(bytes + 3 * kGuard, std::byte{0xa5}) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = kGuard + (kGuard - address % kGuard) % kGuard;
  }
  std::byte* data() noexcept { return memory_.data() + begin_; }
  const std::byte* data() const noexcept { return memory_.data() + begin_; }
  std::size_t size() const noexcept { return size_; }
  std::span<const std::byte> view() const noexcept { return {data(), size_}; }

  bool intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if ((i < begin_ || i >= begin_ + size_) && memory_[i] != std::byte{0xa5}) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t size_;
  std::vector<std::byte> memory_;
  std::size_t begin_ = 0;
};

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace tersum::test
