#include "src/device/hold.hpp"

#include <map>

#include "cuda/error.hpp"
#include "src/device/stream_gate.hpp"

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

}  // namespace

void hold_until(Stream stream, WorkState& work) {
  if (!gpu::has_device())
    throw Error(Code::Unsupported, "a stream can wait for a work only where there is a GPU");
  const gpu::StreamView held(stream);
  if (held.is_capturing())
    throw Error(Code::Unsupported,
                "a stream that is captured into a CUDA graph cannot wait for a work");
  int device = 0;
  gpu::check(cudaGetDevice(&device), "cudaGetDevice");
  auto gate = GatePool::instance().take(device);
  const StreamGate::Ticket ticket = gate->take();
  try {
    gate->hold(held, ticket);
  } catch (...) {
    gate->open(ticket);
    throw;
  }
  work.on_complete([gate, ticket, device](const Status&) {
    gate->open(ticket);
    GatePool::instance().give(device, gate);
  });
}

}  // namespace tersum::runtime
