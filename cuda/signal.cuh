// Flags in peer memory, and waits that always end.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/collective_layout.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {

/// Stores `value` after everything that this thread, and threads that it has met at a barrier, have
/// written before; seen in this order by all GPUs and the host.
__device__ inline void store_release(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/// Loads a flag; what its writer had written before is visible afterwards.
__device__ inline std::uint32_t load_acquire(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

__device__ inline std::uint32_t load_relaxed(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

/// Stores a flag that says only that something has been read: values that were loaded and used
/// before a barrier have arrived, so that no fence is needed.
__device__ inline void store_relaxed(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/// Loads and stores of 16 bytes that go to memory each time; nothing is ordered by them.
__device__ inline void store_volatile(std::byte* to, uint4 value) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline uint4 load_volatile(const std::byte* from) {
  uint4 value;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

/// Nanoseconds of a clock that all blocks share.
__device__ inline std::uint64_t global_time() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

/// True if counter `reached` is at least `wanted`, modulo 2^32.
__device__ inline bool has_reached(std::uint32_t reached, std::uint32_t wanted) {
  return static_cast<std::int32_t>(reached - wanted) >= 0;
}

/// Keeps the first failure of a group: all its kernels end soon, and the host finds the reason.
__device__ inline void report_failure(Progress* progress, Mailbox* mailbox, Code code, int peer) {
  const auto number = static_cast<std::uint32_t>(code);
  if (atomicCAS(&progress->failed, 0u, number) != 0) return;
  mailbox->peer = peer;
  store_release(&mailbox->code, number);
}

/// The waits of one thread. Each wait ends when its condition holds, when the host aborts, when
/// another thread of the group has failed, or at a deadline that starts with the first long wait.
class Watch {
 public:
  __device__ explicit Watch(const Group& group)
      : progress_(group.progress), mailbox_(group.mailbox), timeout_ns_(group.timeout_ns) {}

  __device__ Watch(Progress* progress, Mailbox* mailbox, std::uint64_t timeout_ns)
      : progress_(progress), mailbox_(mailbox), timeout_ns_(timeout_ns) {}

  /// From now on waits end with PeerLost, too, when `flag` is not 0.
  __device__ void heed(const std::uint32_t* flag) { peer_failed_ = flag; }

  /// Waits until ready() is true, for something that rank `peer` does. False if it never will be;
  /// the reason is in the mailbox then, and all that is left to do is to leave the kernel.
  template <class Ready>
  __device__ bool wait(int peer, Ready ready) {
    for (unsigned tries = 1;; ++tries) {
      if (ready()) return true;
      // Soon for the first time: after a failure each kernel in the stream comes here once.
      if ((tries == kFirst || tries % kPatience == 0) && !may_go_on(peer)) return false;
    }
  }

  /// The same for all threads of a warp, which must come together: ready() of all of them, or false
  /// for all of them.
  template <class Ready>
  __device__ bool wait_together(int peer, Ready ready) {
    for (unsigned tries = 1;; ++tries) {
      if (__all_sync(0xffffffffu, ready())) return true;
      if ((tries == kFirst || tries % kPatience == 0) &&
          !__all_sync(0xffffffffu, may_go_on(peer))) {
        return false;
      }
    }
  }

  /// Ends the group with `code`, because of rank `peer`.
  __device__ bool fail(Code code, int peer) {
    report_failure(progress_, mailbox_, code, peer);
    return false;
  }

 private:
  static constexpr unsigned kFirst = 64, kPatience = 1024;
  // Host memory is far away, and hundreds of threads that read it at once delay each other by more
  // than what they wait for: so that is done only in waits that are long anyway.
  static constexpr std::uint64_t kLookEvery = 1'000'000;  // ns

  __device__ bool may_go_on(int peer) {
    if (load_relaxed(&progress_->failed) != 0) return false;
    if (peer_failed_ != nullptr && load_relaxed(peer_failed_) != 0)
      return fail(Code::PeerLost, peer);
    const std::uint64_t now = global_time();
    if (deadline_ == 0) {
      next_look_ = now + kLookEvery;
      deadline_ = now + timeout_ns_;
      return true;
    }
    if (now < next_look_) return true;
    next_look_ = now + kLookEvery;
    if (load_relaxed(&mailbox_->abort) != 0) return fail(Code::Aborted, peer);
    return timeout_ns_ == 0 || now < deadline_ || fail(Code::Timeout, peer);
  }

  Progress* progress_;
  Mailbox* mailbox_;
  std::uint64_t timeout_ns_;
  const std::uint32_t* peer_failed_ = nullptr;
  std::uint64_t deadline_ = 0, next_look_ = 0;
};

/// Brings kernel parameters near, where it costs nothing: before begin_after_previous().
template <class T>
__device__ inline void warm_parameters(const T& parameters) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(&parameters);
#pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 4; i += 16) {
    const std::uint32_t word = words[i];
    asm volatile("" ::"r"(word));
  }
}

/// Kernels that were launched early start while the one before them in the stream still runs, and
/// wait here until it has ended and all its results are visible. Nothing before this call may touch
/// memory. Costs nothing in others.
__device__ inline void begin_after_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// The board of `rank`.
__device__ inline Board& board_of(const Group& group, int rank) {
  return *reinterpret_cast<Board*>(group.arena[rank]);
}

}  // namespace tersum::gpu
