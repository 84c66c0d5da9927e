// Collectives through queues in the peers' memory: each block of a sender owns one queue in every
// peer and pushes its chunks there with 16-byte stores, followed by one flag per chunk; the block
// of the same number at the receiver takes them out and gives the slots back. Some warps send and
// others receive, so that both directions of the link are busy; one more sets the flags, so that
// only this one waits until a chunk has reached the peer.
//
// Queue counters live in Progress and only grow: nothing has to be reset between operations, and a
// replayed graph goes on where the last operation ended. Pairs are independent of each other, so
// operations between two ranks need no others.
#include "cuda/collective_kernels.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/error.hpp"
#include "cuda/reduction.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {
namespace {

constexpr int kUnroll = 8;  // vectors in flight per thread

/// What the threads of a block tell each other.
struct Shared {
  std::uint32_t sent[kMaxPeers];  // chunks before this operation
  std::uint32_t received[kMaxPeers];
  std::uint32_t emptied[kMaxPeers];  // latest known, of the queues in the peers
  std::uint32_t chunks_read;         // of `input`, by the senders
  bool sender_alive, receiver_alive;
};

constexpr std::uint32_t kAll = 0x7fffffffu;
constexpr int kBlockThreads = 2 * kRoleThreads + 32;

enum class Role : int { Send = 1, Receive = 2 };  // numbers of named barriers
constexpr unsigned kFlagBarriers = 4, kFirstFlagBarrier = 3;

template <Role kRole>
__device__ void meet() {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"n"(static_cast<int>(kRole)), "n"(kRoleThreads) : "memory");
}

/// Senders: the stores of chunk number `turn` of this operation are issued. Waits only every
/// `lead` times, until the thread that sets flags has caught up: too much data under way to the
/// peer at once makes the link much slower.
__device__ inline void hand_over(unsigned turn, unsigned lead) {
  __syncwarp();
  const unsigned barrier = kFirstFlagBarrier + turn % kFlagBarriers;
  if (turn % lead == lead - 1) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kRoleThreads + 32) : "memory");
  } else {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kRoleThreads + 32) : "memory");
  }
}

/// The other side of hand_over().
__device__ inline void take_over(unsigned turn) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(kFirstFlagBarrier + turn % kFlagBarriers),
               "n"(kRoleThreads + 32)
               : "memory");
}

__device__ inline std::byte* slot_of(const Group& group, int owner, int source,
                                     std::uint32_t chunk) {
  const std::uint64_t queue =
      std::uint64_t{blockIdx.x} * static_cast<unsigned>(group.size) + static_cast<unsigned>(source);
  return group.arena[owner] + group.queue_offset +
         (queue * group.slots + chunk % group.slots) * group.slot_bytes;
}

/// Bytes of chunk `chunk` of a run of `bytes`.
__device__ inline std::uint32_t bytes_in(std::uint64_t bytes, std::uint64_t start,
                                         std::uint32_t chunk_bytes) {
  if (start >= bytes) return 0;
  return static_cast<std::uint32_t>(min(bytes - start, std::uint64_t{chunk_bytes}));
}

__device__ inline uint4 load_vector(const std::byte* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}

/// Copies `bytes` with all threads of a role; `vector_to` says that `to` takes whole vectors even
/// beyond the end (a slot).
template <class T>
__device__ void copy(std::byte* to, bool aligned_to, const std::byte* from, bool aligned_from,
                     std::uint32_t bytes, int thread) {
  constexpr std::uint32_t kVector = sizeof(uint4), kStep = kRoleThreads * kVector;
  std::uint32_t at = static_cast<std::uint32_t>(thread) * kVector;
  if (aligned_to && aligned_from) {
    for (; at + (kUnroll - 1) * kStep + kVector <= bytes; at += kUnroll * kStep) {
      uint4 values[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) values[i] = load_vector(from + at + i * kStep);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) *reinterpret_cast<uint4*>(to + at + i * kStep) = values[i];
    }
  }
  for (; at < bytes; at += kStep) {
    const auto value = load_elements<T, uint4>(from + at, aligned_from, bytes - at);
    store_elements<T, uint4>(to + at, value, aligned_to, bytes - at);
  }
}

/// The longest run, the own one left out or not.
__device__ inline std::uint64_t longest(const Group& group, const Range* runs, bool own) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < group.size; ++i) {
    if (own || i != group.rank) bytes = max(bytes, runs[i].bytes);
  }
  return bytes;
}

/// Waits until the peer has a free slot for `chunk`; all senders together.
__device__ bool await_slot(const Group& group, Shared& shared, Watch& watch, int peer,
                           std::uint32_t chunk, int thread) {
  if (has_reached(shared.emptied[peer], chunk + 1 - group.slots)) return true;
  meet<Role::Send>();  // all have read what is changed now
  if (thread == 0) {
    const auto& flag = board_of(group, group.rank).emptied[blockIdx.x][peer].value;
    shared.sender_alive = watch.wait(peer, [&] {
      shared.emptied[peer] = load_acquire(&flag);
      return has_reached(shared.emptied[peer], chunk + 1 - group.slots);
    });
  }
  meet<Role::Send>();
  return shared.sender_alive;
}

template <class T>
__device__ void send_role(const Group& group, const Exchange& exchange, Shared& shared,
                          int thread) {
  Watch watch(group);
  const std::uint64_t end = longest(group, exchange.send, false);
  std::uint64_t start = std::uint64_t{blockIdx.x} * exchange.chunk_bytes;
  const std::uint64_t step = std::uint64_t{gridDim.x} * exchange.chunk_bytes;
  unsigned turn = 0;
  for (std::uint32_t index = 0; start < end; ++index, start += step) {
    for (int distance = 1; distance < group.size; ++distance) {
      const int peer = (group.rank + distance) % group.size;
      const std::uint32_t bytes = bytes_in(exchange.send[peer].bytes, start, exchange.chunk_bytes);
      if (bytes == 0) continue;
      const std::uint32_t chunk = shared.sent[peer] + index;
      const bool good = await_slot(group, shared, watch, peer, chunk, thread);
      if (good) {
        copy<T>(slot_of(group, peer, group.rank, chunk), true,
                exchange.input + exchange.send[peer].offset + start, exchange.aligned, bytes,
                thread);
      }
      hand_over(turn++, exchange.lead);
      if (!good) return;
    }
  }
}

/// One warp: tells peers of the chunks that the senders have stored.
__device__ void flag_role(const Group& group, const Exchange& exchange, Shared& shared, int lane) {
  auto* read = reinterpret_cast<volatile std::uint32_t*>(&shared.chunks_read);
  const std::uint64_t end = longest(group, exchange.send, false);
  std::uint64_t start = std::uint64_t{blockIdx.x} * exchange.chunk_bytes;
  const std::uint64_t step = std::uint64_t{gridDim.x} * exchange.chunk_bytes;
  unsigned turn = 0;
  for (std::uint32_t index = 0; start < end; ++index, start += step) {
    for (int distance = 1; distance < group.size; ++distance) {
      const int peer = (group.rank + distance) % group.size;
      if (start >= exchange.send[peer].bytes) continue;
      take_over(turn++);
      if (!shared.sender_alive) return;
      if (lane != 0) continue;
      if (distance + 1 == group.size) *read = index + 1;
      store_release(&board_of(group, peer).full[blockIdx.x][group.rank].value,
                    shared.sent[peer] + index + 1);
    }
    if (lane == 0) *read = index + 1;
  }
  if (lane == 0) *read = kAll;
}

/// Where chunk `index` of a source lies: in its queue here, or in the own input.
__device__ inline const std::byte* source_of(const Group& group, const Exchange& exchange,
                                             const Shared& shared, int source, std::uint32_t index,
                                             std::uint64_t start) {
  if (source == group.rank) return exchange.input + exchange.send[source].offset + start;
  return slot_of(group, group.rank, source, shared.received[source] + index);
}

template <class T, bool kSum, int kVectors>
__device__ void reduce_vectors(const Group& group, const Exchange& exchange, const Shared& shared,
                               std::uint32_t index, std::uint64_t start, std::uint32_t at,
                               std::uint32_t bytes) {
  constexpr std::uint32_t kStep = kRoleThreads * sizeof(uint4);
  Accumulators<T, uint4, kSum> sums[kVectors];
  uint4 next[kVectors];
  const auto load = [&](int source) {
    const std::byte* from = source_of(group, exchange, shared, source, index, start);
    const bool own = source == group.rank;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const std::uint32_t offset = at + i * kStep;
      next[i] = !own || (exchange.aligned && offset + sizeof(uint4) <= bytes)
                    ? load_vector(from + offset)
                    : load_elements<T, uint4>(from + offset, exchange.aligned, bytes - offset);
    }
  };
  load(0);
  for (int source = 0; source < group.size; ++source) {
    uint4 values[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) values[i] = next[i];
    if (source + 1 < group.size) load(source + 1);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (source == 0) {
        sums[i].begin(values[i], exchange.arithmetic);
      } else {
        sums[i].add(values[i], exchange.arithmetic);
      }
    }
  }
  std::byte* to = exchange.output + exchange.place[group.rank].offset + start;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t offset = at + i * kStep;
    store_elements<T, uint4>(to + offset, sums[i].result(exchange.arithmetic, group.size),
                             exchange.aligned, bytes - offset);
  }
}

template <class T, bool kSum>
__device__ void consume(const Group& group, const Exchange& exchange, const Shared& shared,
                        std::uint32_t index, std::uint64_t start, int thread) {
  if (!exchange.combine) {
    for (int distance = 0; distance < group.size; ++distance) {
      const int source = (group.rank + distance) % group.size;
      const Range& run = exchange.place[source];
      const std::byte* from = source_of(group, exchange, shared, source, index, start);
      std::byte* to = exchange.output + run.offset + start;
      if (from == to) continue;
      copy<T>(to, exchange.aligned, from, source != group.rank || exchange.aligned,
              bytes_in(run.bytes, start, exchange.chunk_bytes), thread);
    }
    return;
  }
  constexpr std::uint32_t kStep = kRoleThreads * sizeof(uint4);
  constexpr int kAtOnce = sizeof(AccumulatorOf<T>) <= 2 * sizeof(T) && sizeof(T) >= 2 ? 4 : 1;
  const std::uint32_t bytes =
      bytes_in(exchange.place[group.rank].bytes, start, exchange.chunk_bytes);
  auto at = static_cast<std::uint32_t>(thread * sizeof(uint4));
  for (; at + (kAtOnce - 1) * kStep < bytes; at += kAtOnce * kStep) {
    reduce_vectors<T, kSum, kAtOnce>(group, exchange, shared, index, start, at, bytes);
  }
  for (; at < bytes; at += kStep) {
    reduce_vectors<T, kSum, 1>(group, exchange, shared, index, start, at, bytes);
  }
}

/// True, for each of the first threads, if the chunk of its source is there and `input` has been
/// read so far that the output may be written.
__device__ bool await_chunk(const Group& group, const Exchange& exchange, const Shared& shared,
                            Watch& watch, std::uint32_t index, std::uint64_t start, int thread) {
  if (thread >= group.size) return true;
  if (thread == group.rank) {
    if (!exchange.overlaps) return true;
    const auto* read = reinterpret_cast<const volatile std::uint32_t*>(&shared.chunks_read);
    return watch.wait(-1, [&] { return *read > index; });
  }
  if (start >= exchange.place[thread].bytes) return true;
  const auto& flag = board_of(group, group.rank).full[blockIdx.x][thread].value;
  const std::uint32_t wanted = shared.received[thread] + index + 1;
  return watch.wait(thread, [&] { return has_reached(load_acquire(&flag), wanted); });
}

template <class T, bool kSum>
__device__ void receive_role(const Group& group, const Exchange& exchange, Shared& shared,
                             int thread) {
  Watch watch(group);
  const std::uint64_t end = longest(group, exchange.place, true);
  std::uint64_t start = std::uint64_t{blockIdx.x} * exchange.chunk_bytes;
  const std::uint64_t step = std::uint64_t{gridDim.x} * exchange.chunk_bytes;
  for (std::uint32_t index = 0; start < end; ++index, start += step) {
    if (!await_chunk(group, exchange, shared, watch, index, start, thread)) {
      shared.receiver_alive = false;
    }
    meet<Role::Receive>();
    if (!shared.receiver_alive) return;
    consume<T, kSum>(group, exchange, shared, index, start, thread);
    meet<Role::Receive>();
    const int source = thread - (kRoleThreads - 32);  // another warp than the one that waits
    if (source >= 0 && source < group.size && source != group.rank &&
        start < exchange.place[source].bytes) {
      store_relaxed(&board_of(group, source).emptied[blockIdx.x][group.rank].value,
                    shared.received[source] + index + 1);
    }
  }
}

__device__ inline std::uint32_t chunks_of(const Exchange& exchange, std::uint64_t bytes) {
  const std::uint64_t chunks = (bytes + exchange.chunk_bytes - 1) / exchange.chunk_bytes;
  return blockIdx.x >= chunks
             ? 0
             : static_cast<std::uint32_t>((chunks - blockIdx.x + gridDim.x - 1) / gridDim.x);
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kBlockThreads, 1)
    exchange_chunks(const __grid_constant__ Group group,
                    const __grid_constant__ Exchange exchange) {
  __shared__ Shared shared;
  warm_parameters(group);
  warm_parameters(exchange);
  begin_after_previous();
  Progress& progress = *group.progress;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < group.size) {
    shared.sent[thread] = progress.sent[blockIdx.x][thread];
    shared.received[thread] = progress.received[blockIdx.x][thread];
    shared.emptied[thread] =
        load_acquire(&board_of(group, group.rank).emptied[blockIdx.x][thread].value);
  }
  if (thread == 32) {
    shared.chunks_read = 0;
    shared.sender_alive = shared.receiver_alive = load_relaxed(&progress.failed) == 0;
  }
  __syncthreads();
  if (thread < group.size && thread != group.rank) {
    progress.sent[blockIdx.x][thread] =
        shared.sent[thread] + chunks_of(exchange, exchange.send[thread].bytes);
    progress.received[blockIdx.x][thread] =
        shared.received[thread] + chunks_of(exchange, exchange.place[thread].bytes);
  }
  const bool failed_before = !shared.sender_alive && !shared.receiver_alive;
  __syncthreads();
  if (failed_before) return;
  if (thread < kRoleThreads) {
    send_role<T>(group, exchange, shared, thread);
  } else if (thread < 2 * kRoleThreads) {
    receive_role<T, kSum>(group, exchange, shared, thread - kRoleThreads);
  } else {
    flag_role(group, exchange, shared, thread - 2 * kRoleThreads);
  }
}

}  // namespace

void launch_push(const Group& group, const Exchange& exchange, DType dtype, int blocks,
                 StreamView stream) {
  const ReduceOp op = exchange.arithmetic.op;
  const bool sum = !exchange.combine || op == ReduceOp::Sum || op == ReduceOp::Average;
  with_element_type(dtype, [&]<class T>() {
    if (sum) {
      launch(exchange_chunks<T, true>, static_cast<unsigned>(blocks), kBlockThreads, group.early,
             stream, group, exchange);
    } else {
      launch(exchange_chunks<T, false>, static_cast<unsigned>(blocks), kBlockThreads, group.early,
             stream, group, exchange);
    }
  });
}

void load_push_kernels() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    with_element_type(static_cast<DType>(dtype), [&]<class T>() {
      load_kernel(exchange_chunks<T, true>);
      load_kernel(exchange_chunks<T, false>);
    });
  }
}

}  // namespace tersum::gpu
