#include "src/device/hold.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "cuda/error.hpp"
#include "src/config.hpp"
#include "src/device/stream_gate.hpp"
#include "src/engine/engine.hpp"

namespace tersum::runtime {
namespace {

/// Gates that nobody waits at, by device. Each wait takes one, so that works which end in another
/// order than they are waited for do not hold each other up.
class GatePool {
 public:
  /// Kept to the end of the process: a stream may be held by one of its gates until then.
  static GatePool& instance() {
    static auto* const pool = new GatePool;
    return *pool;
  }

  std::shared_ptr<StreamGate> take(int device) {
    {
      const std::lock_guard lock(mutex_);
      auto& gates = free_[device];
      if (!gates.empty()) {
        auto gate = std::move(gates.back());
        gates.pop_back();
        return gate;
      }
    }
    return std::make_shared<StreamGate>();
  }
  void give(int device, std::shared_ptr<StreamGate> gate) noexcept {
    const std::lock_guard lock(mutex_);
    free_[device].push_back(std::move(gate));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<std::shared_ptr<StreamGate>>> free_;
};

/// Which streams wait for works, by device.
class HeldStreams {
 public:
  using Id = unsigned long long;

  static HeldStreams& instance() {
    static auto* const streams = new HeldStreams;
    return *streams;
  }

  /// False if the device has no queue to spare for this stream, and the caller can wait instead.
  /// Every other add() is followed by a remove().
  bool add(int device, Id stream) {
    const std::lock_guard lock(mutex_);
    auto& held = held_[device];
    if (!held.contains(stream) && held.size() >= most_ && !Engine::on_any_engine_thread())
      return false;
    ++held[stream];
    return true;
  }
  void remove(int device, Id stream) noexcept {
    const std::lock_guard lock(mutex_);
    auto& held = held_[device];
    const auto found = held.find(stream);
    if (--found->second == 0) held.erase(found);
  }

 private:
  std::mutex mutex_;
  const std::size_t most_ = most_held_streams(cuda_connections());
  std::map<int, std::map<Id, std::size_t>> held_;  // how many works each one waits for
};

}  // namespace

std::size_t most_held_streams(const char* connections) noexcept {
  constexpr std::size_t kDefault = 8, kMost = 32;
  constexpr std::size_t kOthers = 3;  // two of an exchange, one that waits for a held stream
  std::size_t count = kDefault;
  if (connections != nullptr) {
    count = 1;  // what CUDA makes of something else is not known
    std::from_chars(connections, connections + std::strlen(connections), count);
  }
  const std::size_t half = std::clamp<std::size_t>(count, 1, kMost) / 2;
  return half - std::min(half, kOthers);
}

void hold_until(Stream stream, WorkState& work) {
  if (!gpu::has_device())
    throw Error(Code::Unsupported, "a stream can wait for a work only where there is a GPU");
  const gpu::StreamView held(stream);
  if (held.is_capturing())
    throw Error(Code::Unsupported,
                "a stream that is captured into a CUDA graph cannot wait for a work");
  int device = 0;
  gpu::check(cudaGetDevice(&device), "cudaGetDevice");
  HeldStreams::Id id = 0;
  gpu::check(cudaStreamGetId(held.get(), &id), "cudaStreamGetId");
  if (!HeldStreams::instance().add(device, id)) return work.wait();
  std::shared_ptr<StreamGate> gate;
  StreamGate::Ticket ticket = 0;
  try {
    gate = GatePool::instance().take(device);
    ticket = gate->take();
    gate->hold(held, ticket);
  } catch (...) {
    if (gate) gate->open(ticket);
    HeldStreams::instance().remove(device, id);
    throw;
  }
  work.on_complete([gate, ticket, device, id](const Status&) {
    gate->open(ticket);
    GatePool::instance().give(device, gate);
    HeldStreams::instance().remove(device, id);
  });
}

}  // namespace tersum::runtime
