#include "src/device/stream_notice.hpp"

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/error.hpp"
#include "cuda/event_pool.hpp"

namespace tersum::runtime {
namespace {

int device_of(gpu::StreamView stream) {
#if CUDART_VERSION >= 12080
  int device = 0;
  gpu::check(cudaStreamGetDevice(stream.get(), &device), "cudaStreamGetDevice");
  return device;
#else
  return gpu::current_device();
#endif
}

constexpr auto kNap = std::chrono::microseconds(10);

/// Looks at events, in a thread that sleeps while there are none. Not callbacks of CUDA: these wait
/// while any thread of the process waits inside CUDA for a copy of pageable memory, perhaps for one
/// that comes after what we wait for.
class StreamWatcher {
 public:
  /// Kept to the end of the process: a listener may be told late.
  static StreamWatcher& instance() {
    static auto* const watcher = new StreamWatcher;
    return *watcher;
  }

  gpu::EventPool& events() noexcept { return events_; }

  void watch(gpu::StreamView stream, StreamListener& listener, gpu::EventPool& events) {
    const int device = device_of(stream);
    Notice notice{device, &events, events.take(device), &listener};
    notice.event.record(stream);
    const std::lock_guard lock(mutex_);
    streams_[stream.get()].push_back(std::move(notice));
    if (waiting_++ == 0) wake_.notify_one();
  }

 private:
  struct Notice {
    int device;
    gpu::EventPool* pool;
    gpu::Event event;
    StreamListener* listener;
  };

  StreamWatcher() {
    std::thread([this] { run(); }).detach();
  }

  void run() {
    std::vector<std::pair<Notice, Status>> reached;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return waiting_ > 0; });
        for (auto stream = streams_.begin(); stream != streams_.end();) {
          take_reached(stream->second, reached);
          stream = stream->second.empty() ? streams_.erase(stream) : std::next(stream);
        }
        waiting_ -= reached.size();
      }
      if (reached.empty()) std::this_thread::sleep_for(kNap);
      for (auto& [notice, status] : reached) {
        notice.pool->give(notice.device, std::move(notice.event));
        notice.listener->on_reached(status);
      }
      reached.clear();
    }
  }

  /// Only the first of a stream can be the next.
  static void take_reached(std::deque<Notice>& notices,
                           std::vector<std::pair<Notice, Status>>& reached) {
    while (!notices.empty()) {
      Status status;
      try {
        if (!notices.front().event.is_done()) return;
      } catch (const Error& error) {
        status = error.status();
      }
      reached.emplace_back(std::move(notices.front()), status);
      notices.pop_front();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::size_t waiting_ = 0;
  std::map<cudaStream_t, std::deque<Notice>> streams_;
  gpu::EventPool events_;
};

}  // namespace

void notify(gpu::StreamView stream, StreamListener& listener) {
  notify(stream, listener, StreamWatcher::instance().events());
}

void notify(gpu::StreamView stream, StreamListener& listener, gpu::EventPool& events) {
  StreamWatcher::instance().watch(stream, listener, events);
}

}  // namespace tersum::runtime
