// What streams that wait for the host keep other streams and threads from.
//
// usage: queues_cuda [--connections N]
//
// Streams wait for a word in page-locked memory, as Work::wait_on() has it, with something put
// behind the wait; then something is put into 40 other streams. Those that have not done it after
// 15 ms are held up. N is what CUDA_DEVICE_MAX_CONNECTIONS is set to. Without it, it stays as it
// is, and what it is no matter for comes next: threads, of which one waits inside CUDA behind such
// a wait while another one makes a call; and copies by kernels against those by copy engines.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/divide.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/kernel_copy.hpp"
#include "cuda/stream.hpp"
#include "cuda/virtual_memory.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kOthers = 40, kBytes = std::size_t{1} << 20;

/// What streams wait for.
class Word {
 public:
  Word() : word_(sizeof(std::uint32_t)) {
    if (wait_ == nullptr)
      throw Error(Code::Unsupported, "the CUDA driver cannot let a stream wait for memory");
  }
  ~Word() { set(1); }

  void hold(StreamView stream) const {
    const auto address = reinterpret_cast<CUdeviceptr>(word_.data());
    if (wait_(stream.get(), address, 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
      throw Error(Code::System, "cuStreamWaitValue32 failed");
  }
  void set(std::uint32_t value) const {
    std::atomic_ref(*word_.as<std::uint32_t>()).store(value, std::memory_order_release);
  }

 private:
  decltype(cuStreamWaitValue32)* const wait_ =
      driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32");
  PinnedBuffer word_;
};

/// Memory for all that is put into streams.
struct Memory {
  DeviceBuffer here{kBytes}, too{kBytes};
  PinnedBuffer pinned{kBytes};
  std::vector<std::byte> pageable{kBytes};
  std::optional<DeviceBuffer> peer;

  Memory() {
    const auto all = devices();
    const auto& peers = all[static_cast<std::size_t>(current_device())].peers;
    if (peers.empty()) return;
    check(cudaDeviceEnablePeerAccess(peers[0], 0), "cudaDeviceEnablePeerAccess");
    const DeviceGuard guard(peers[0]);
    peer.emplace(kBytes);
  }
};

struct Action {
  std::string name;
  std::function<void(StreamView)> put;
};

void copy(StreamView stream, void* to, const void* from, std::size_t bytes = kBytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
}

std::vector<Action> actions(const Memory& memory) {
  std::vector<Action> all = {
      {"kernel", [&](StreamView stream) { divide(stream, memory.here.as<float>(), 100, 1.0f); }},
      {"memset",
       [&](StreamView stream) {
         check(cudaMemsetAsync(memory.here.data(), 0, kBytes, stream.get()), "cudaMemsetAsync");
       }},
      {"copy inside",
       [&](StreamView stream) { copy(stream, memory.too.data(), memory.here.data()); }},
      {"copy to host",
       [&](StreamView stream) { copy(stream, memory.pinned.data(), memory.here.data()); }},
      {"copy to device",
       [&](StreamView stream) { copy(stream, memory.here.data(), memory.pinned.data()); }}};
  if (memory.peer)
    all.push_back({"copy to peer", [&](StreamView stream) {
                     copy(stream, memory.peer->data(), memory.here.data());
                   }});
  all.push_back({"kernel copy", [&](StreamView stream) {
                   copy_by_kernel(stream, memory.pinned.data(), memory.here.data(), kBytes);
                 }});
  return all;
}

/// How many of 40 streams are held up with `theirs` while `waiting` streams wait with `ours` behind
/// it; with `chains`, for each of these another stream waits that has `ours`, too.
std::size_t held_up(const Word& word, std::size_t waiting, bool chains, const Action& ours,
                    const Action& theirs) {
  const std::vector<Stream> waiters(waiting), followers(chains ? waiting : 0), others(kOthers);
  const std::vector<Event> reached(followers.size()), done(kOthers);
  word.set(0);
  for (std::size_t i = 0; i < waiting; ++i) {
    word.hold(waiters[i]);
    ours.put(waiters[i]);
    if (!chains) continue;
    reached[i].record(waiters[i]);
    followers[i].wait(reached[i]);
    ours.put(followers[i]);
  }
  for (std::size_t i = 0; i < kOthers; ++i) {
    theirs.put(others[i]);
    done[i].record(others[i]);
  }
  std::this_thread::sleep_for(Milliseconds(15));
  const auto late =
      std::count_if(done.begin(), done.end(), [](const Event& event) { return !event.is_done(); });
  word.set(1);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return static_cast<std::size_t>(late);
}

/// By streams that wait, until all others are held up.
void print_kernels(const Word& word, const Action& kernel) {
  for (const bool chains : {false, true}) {
    std::printf("\nkernels of %zu streams held up by 1, 2, 3, ... streams that wait%s\n ", kOthers,
                chains ? ", each with one that waits for it" : "");
    std::size_t late = 0;
    for (std::size_t waiting = 1; waiting <= kOthers && late < kOthers; ++waiting) {
      late = held_up(word, waiting, chains, kernel, kernel);
      std::printf(" %zu", late);
    }
    std::printf("\n");
  }
}

/// Everything behind one wait and behind three, against everything.
void print_pairs(const Word& word, const std::vector<Action>& all) {
  for (const std::size_t waiting : {1u, 3u}) {
    std::printf(
        "\nof %zu streams held up by %zu that wait; behind the wait (down), in others (across)\n",
        kOthers, waiting);
    std::printf("%16s", "");
    for (const Action& theirs : all) std::printf("%16s", theirs.name.c_str());
    std::printf("\n");
    for (const Action& ours : all) {
      std::printf("%16s", ours.name.c_str());
      for (const Action& theirs : all)
        std::printf("%16zu", held_up(word, waiting, false, ours, theirs));
      std::printf("\n");
    }
  }
}

/// Copies between the device and pinned memory, by a kernel and by a copy engine: the best of seven
/// times ten copies.
void print_copies() {
  constexpr std::size_t kLargest = std::size_t{32} << 20;
  constexpr int kCopies = 10;
  const DeviceBuffer device(kLargest);
  const PinnedBuffer host(kLargest);
  const Stream stream;
  const Event start(Event::Timing::On), end(Event::Timing::On);
  const auto best_us = [&](const auto& copy_one) {
    float best = 1e9f;
    for (int attempt = 0; attempt < 7; ++attempt) {
      start.record(stream);
      for (int i = 0; i < kCopies; ++i) copy_one();
      end.record(stream);
      end.synchronize();
      best = std::min(best, end.milliseconds_since(start) * 1000 / kCopies);
    }
    return static_cast<double>(best);
  };
  std::printf("\nmicroseconds of a copy\n%12s%16s%16s%16s%16s\n", "bytes", "to host, kernel",
              "engine", "to device", "engine");
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{64} << 10, kBytes, 16 * kBytes, kLargest}) {
    std::printf("%12zu", bytes);
    for (const auto& [to, from] :
         {std::pair(host.data(), device.data()), std::pair(device.data(), host.data())}) {
      std::printf("%16.1f", best_us([&] { copy_by_kernel(stream, to, from, bytes); }));
      std::printf("%16.1f", best_us([&] { copy(stream, to, from, bytes); }));
    }
    std::printf("\n");
  }
}

/// What threads make while another one waits; kept until nothing does.
struct Made {
  std::vector<Stream> streams;
  std::vector<Event> events;
  std::vector<DeviceBuffer> device;
  std::vector<PinnedBuffer> pinned;
  std::vector<VirtualBuffer> pages;
  void* pooled = nullptr;
  bool registered = false;
};

/// One thread waits in `blocker`, which is put behind the wait of a stream; another one calls.
class Threads {
 public:
  explicit Threads(const Word& word, Memory& memory) : word_(word), memory_(memory) {}

  void print() {
    std::vector<Action> blockers = {
        {"launches", [this](StreamView stream) { flood(stream); }},
        {"copy, 4 bytes",
         [this](StreamView stream) {
           copy(stream, memory_.pageable.data(), memory_.here.data(), 4);
           stream.synchronize();
         }},
        {"copy, 1 MiB",
         [this](StreamView stream) { copy(stream, memory_.pageable.data(), memory_.here.data()); }},
        {"stream", [](StreamView stream) { stream.synchronize(); }},
        {"event",
         [](StreamView stream) {
           const Event event;
           event.record(stream);
           event.synchronize();
         }},
        {"device", [](StreamView) { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }}};
    std::printf(
        "\nwhile a thread waits inside CUDA behind a wait: 1020 launches and more; a copy to "
        "pageable memory;\nfor a stream, an event, the device; another thread's call goes on, or "
        "waits, too\n%28s",
        "");
    for (const Action& blocker : blockers) std::printf("%15s", blocker.name.c_str());
    std::printf("\n");
    const auto all = calls();
    for (const Action& call : all) call.put(nullptr);  // the first time it may be something else
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    clear();
    for (const Action& call : all) {
      std::printf("%28s", call.name.c_str());
      for (const Action& blocker : blockers)
        std::printf("%15s", goes_on(blocker, call) ? "goes on" : "waits");
      std::printf("\n");
    }
  }

 private:
  void flood(StreamView stream) const {
    for (int i = 0; i < 3000; ++i) divide(stream, memory_.here.as<float>(), 100, 1.0f);
  }

  std::vector<Action> calls() {
    std::vector<Action> all;
    for (const Action& action : actions(memory_)) all.push_back(action);
    const auto add = [&](const char* name, std::function<void(StreamView)> put) {
      all.push_back({name, std::move(put)});
    };
    add("event record, query", [this](StreamView stream) {
      event_.record(stream);
      event_.is_done();
    });
    add("stream waits for event", [this](StreamView stream) { stream.wait(event_); });
    add("pointer attributes", [this](StreamView) {
      cudaPointerAttributes attributes{};
      check(cudaPointerGetAttributes(&attributes, memory_.here.data()), "cudaPointerGetAttributes");
    });
    add("driver entry point",
        [](StreamView) { driver_function<decltype(cuMemCreate)>("cuMemCreate"); });
    add("stream query", [](StreamView stream) { (void)stream.is_done(); });
    add("event create", [this](StreamView) { made_.events.emplace_back(); });
    add("stream create", [this](StreamView) { made_.streams.emplace_back(); });
    add("cudaMalloc", [this](StreamView) { made_.device.emplace_back(4 * kBytes); });
    add("cudaHostAlloc", [this](StreamView) { made_.pinned.emplace_back(4 * kBytes); });
    add("cudaHostRegister", [this](StreamView) {
      check(cudaHostRegister(memory_.pageable.data(), kBytes, cudaHostRegisterDefault),
            "cudaHostRegister");
      made_.registered = true;
    });
    add("cudaMallocAsync", [this](StreamView stream) {
      check(cudaMallocAsync(&made_.pooled, 4 * kBytes, stream.get()), "cudaMallocAsync");
    });
    add("virtual memory, device",
        [this](StreamView) { made_.pages.emplace_back(Place::Device, 4 * kBytes); });
    add("virtual memory, host",
        [this](StreamView) { made_.pages.emplace_back(Place::Host, 4 * kBytes); });
    return all;
  }

  bool goes_on(const Action& blocker, const Action& call) {
    const Stream held, free;
    word_.set(0);
    word_.hold(held);
    std::thread blocked([&] { blocker.put(held); });
    std::this_thread::sleep_for(Milliseconds(20));
    std::packaged_task<void()> task([&] { call.put(free); });
    std::future<void> called = task.get_future();
    std::thread caller(std::move(task));
    const bool on = called.wait_for(Milliseconds(100)) == std::future_status::ready;
    word_.set(1);
    blocked.join();
    caller.join();
    called.get();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    clear();
    return on;
  }

  void clear() {
    if (made_.registered) check(cudaHostUnregister(memory_.pageable.data()), "cudaHostUnregister");
    if (made_.pooled != nullptr) check(cudaFreeAsync(made_.pooled, nullptr), "cudaFreeAsync");
    made_ = Made{};
  }

  const Word& word_;
  Memory& memory_;
  const Event event_;
  Made made_;
};

int run(int argc, char** argv) {
  const std::string_view option = argc > 1 ? argv[1] : "";
  if (argc != 1 && !(argc == 3 && option == "--connections" && std::atoi(argv[2]) > 0)) {
    std::fprintf(stderr, "usage: queues_cuda [--connections N]\n");
    return 2;
  }
  if (argc == 3) setenv("CUDA_DEVICE_MAX_CONNECTIONS", argv[2], 1);  // CUDA is not running yet
  const auto found = devices();
  if (found.empty()) {
    std::fprintf(stderr, "no GPU\n");
    return 77;
  }
  std::printf("# %s, CUDA %s, driver's %s; CUDA_DEVICE_MAX_CONNECTIONS %s\n", found[0].name.c_str(),
              runtime_version().c_str(), driver_version().c_str(),
              argc == 3 ? argv[2] : "as it is");
  const Word word;
  Memory memory;
  const auto all = actions(memory);
  for (const Action& action : all) action.put(nullptr);  // CUDA loads kernels at first
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  print_kernels(word, all[0]);
  print_pairs(word, all);
  if (argc > 1) return 0;
  Threads(word, memory).print();
  print_copies();
  return 0;
}

}  // namespace
}  // namespace tersum::gpu

int main(int argc, char** argv) {
  try {
    return tersum::gpu::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "queues_cuda: %s\n", error.what());
    return 1;
  }
}
