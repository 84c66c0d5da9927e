// Collectives in packets: 8 bytes of data travel with two 4-byte flags in one 16-byte store, so
// that a value and the news of its arrival are one access. Halves of a packet may arrive on their
// own; each carries its flag.
//
// The flag is the tag of the operation, which grows by one each time; the inbox has two sides, used
// in turn. A side is written again two operations later, which is safe without a barrier: a rank
// begins operation k only after it has heard from every peer in operation k - 1, hence after every
// peer has ended operation k - 2. Ranks from which no data come say that they are there through
// Board::present.
#include "cuda/collective_kernels.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/error.hpp"
#include "cuda/reduction.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {
namespace {

struct Packet {
  std::uint32_t low, low_tag, high, high_tag;
};

__device__ void store_packet(std::byte* to, uint2 data, std::uint32_t tag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(data.x), "r"(tag),
               "r"(data.y), "r"(tag)
               : "memory");
}

__device__ Packet load_packet(const std::byte* from) {
  Packet packet;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.low), "=r"(packet.low_tag), "=r"(packet.high), "=r"(packet.high_tag)
               : "l"(from)
               : "memory");
  return packet;
}

__device__ inline std::uint32_t next_tag(const Progress* progress) {
  const std::uint32_t last = progress->packets[blockIdx.x];
  return last == 0xffffffffu ? 2 : last + 1;  // 0 is what an inbox holds before its first use
}

/// Counts the operation for blocks that are not there, too; called by all threads of the block.
__device__ inline void count(Progress* progress, std::uint32_t tag) {
  __syncthreads();  // all have read the tag
  for (unsigned block = blockIdx.x + threadIdx.x * gridDim.x; block < kMaxBlocks;
       block += blockDim.x * gridDim.x) {
    progress->packets[block] = tag;
  }
}

/// One thread's view of a packet operation.
template <class T>
class Packets {
 public:
  __device__ explicit Packets(const Group& group, const Exchange& exchange)
      : group_(group), exchange_(exchange), watch_(group) {
    tag_ = next_tag(group.progress);
  }

  /// Counts this operation; called once by all threads of the block.
  __device__ void count_operation() const { count(group_.progress, tag_); }

  __device__ bool alive() const { return alive_; }

  /// Values of a run at `offset` in it.
  __device__ uint2 load(const Range& run, std::uint64_t offset) const {
    return load_elements<T, uint2>(exchange_.input + run.offset + offset, exchange_.aligned,
                                   run.bytes - offset);
  }

  __device__ void store(const Range& run, std::uint64_t offset, uint2 data) const {
    store_elements<T, uint2>(exchange_.output + run.offset + offset, data, exchange_.aligned,
                             run.bytes - offset);
  }

  __device__ void send(int peer, int phase, std::uint64_t offset, uint2 data) const {
    store_packet(inbox(peer, phase, group_.rank, offset), data, tag_);
  }

  /// Waits for the packet of `source`; false if it will not come.
  __device__ bool receive(int source, int phase, std::uint64_t offset, uint2& data) {
    const std::byte* from = inbox(group_.rank, phase, source, offset);
    Packet packet;
    alive_ = alive_ && watch_.wait(source, [&] {
      packet = load_packet(from);
      return packet.low_tag == tag_ && packet.high_tag == tag_;
    });
    data = make_uint2(packet.low, packet.high);
    return alive_;
  }

  /// Rank `peer` gets no data from here in this operation.
  __device__ void show_presence(int peer) const {
    store_release(&board_of(group_, peer).present[group_.rank].value, tag_);
  }

  /// No data come from `peer` in this operation.
  __device__ void await_presence(int peer) {
    const std::uint32_t* flag = &board_of(group_, group_.rank).present[peer].value;
    alive_ = alive_ && watch_.wait(peer, [&] { return has_reached(load_acquire(flag), tag_); });
  }

 private:
  __device__ std::byte* inbox(int owner, int phase, int source, std::uint64_t offset) const {
    const std::uint64_t side = (tag_ & 1) * 2 + static_cast<std::uint64_t>(phase);
    const std::uint64_t index =
        side * static_cast<std::uint64_t>(group_.size) + static_cast<std::uint64_t>(source);
    return group_.arena[owner] + group_.packets_offset + index * group_.packets_bytes +
           offset * (kPacketBytes / kPacketData);
  }

  const Group& group_;
  const Exchange& exchange_;
  Watch watch_;
  std::uint32_t tag_;
  bool alive_ = true;
};

__device__ inline std::uint64_t first_offset() {
  return (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kPacketData;
}

__device__ inline std::uint64_t offset_step() {
  return std::uint64_t{gridDim.x} * blockDim.x * kPacketData;
}

__device__ inline int peer_at(const Group& group, int distance) {
  const int peer = group.rank + distance;
  return peer < group.size ? peer : peer - group.size;
}

__device__ inline std::uint64_t longest(const Range* runs, int size) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < size; ++i) bytes = max(bytes, runs[i].bytes);
  return bytes;
}

/// Reduces the values at `offset` of all ranks; false if some did not come.
template <class T, bool kSum>
__device__ bool reduce(const Group& group, const Exchange& exchange, Packets<T>& packets,
                       const Range& own, std::uint64_t offset, uint2& result) {
  Accumulators<T, uint2, kSum> sums;
  for (int source = 0; source < group.size; ++source) {
    uint2 data;
    if (source == group.rank) {
      data = packets.load(own, offset);
    } else if (!packets.receive(source, 0, offset, data)) {
      return false;
    }
    if (source == 0) {
      sums.begin(data, exchange.arithmetic);
    } else {
      sums.add(data, exchange.arithmetic);
    }
  }
  result = sums.result(exchange.arithmetic, group.size);
  return true;
}

/// Sends each peer its run; `first` is what this thread sends first, to the next peer.
template <class T>
__device__ void send_runs(const Group& group, const Range* runs, const Packets<T>& packets,
                          std::uint64_t end, uint2 first) {
  const std::uint64_t step = offset_step();
  for (std::uint64_t offset = first_offset(); offset < end; offset += step) {
    for (int distance = 1; distance < group.size; ++distance) {
      const int peer = peer_at(group, distance);
      if (offset >= runs[peer].bytes) continue;
      const bool have = distance == 1 && offset == first_offset();
      packets.send(peer, 0, offset, have ? first : packets.load(runs[peer], offset));
    }
  }
}

/// What a thread sends first: loaded while the tag is still on its way.
template <class T>
__device__ uint2 first_value(const Group& group, const Range* runs, const Packets<T>& packets) {
  const int next = peer_at(group, 1);
  const bool any = next != group.rank && first_offset() < runs[next].bytes;
  return any ? packets.load(runs[next], first_offset()) : uint2{};
}

template <class T>
__device__ void place_runs(const Group& group, const Exchange& exchange, Packets<T>& packets) {
  const std::uint64_t end = longest(exchange.place, group.size), step = offset_step();
  for (std::uint64_t offset = first_offset(); offset < end; offset += step) {
    for (int distance = 0; distance < group.size; ++distance) {
      const int source = peer_at(group, distance);
      const Range& run = exchange.place[source];
      if (offset >= run.bytes) continue;
      uint2 data;
      if (source == group.rank) {
        data = packets.load(exchange.send[source], offset);
      } else if (!packets.receive(source, 0, offset, data)) {
        return;
      }
      packets.store(run, offset, data);
    }
  }
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kPacketThreads)
    exchange_packets(const __grid_constant__ Group group,
                     const __grid_constant__ Exchange exchange) {
  const int peer = static_cast<int>(threadIdx.x);
  const bool attends = blockIdx.x == 0 && peer < group.size && peer != group.rank;
  const std::uint64_t end = longest(exchange.send, group.size);
  warm_parameters(group);
  warm_parameters(exchange);
  begin_after_previous();
  Packets<T> packets(group, exchange);
  const uint2 first = first_value(group, exchange.send, packets);
  if (attends && exchange.send[peer].bytes == 0) packets.show_presence(peer);
  send_runs(group, exchange.send, packets, end, first);
  packets.count_operation();
  if (!exchange.combine) {
    place_runs(group, exchange, packets);
  } else {
    const Range& run = exchange.place[group.rank];
    for (std::uint64_t at = first_offset(); at < run.bytes; at += offset_step()) {
      uint2 data;
      if (!reduce<T, kSum>(group, exchange, packets, exchange.send[group.rank], at, data)) break;
      packets.store(run, at, data);
    }
  }
  if (attends && exchange.place[peer].bytes == 0) packets.await_presence(peer);
}

template <class T, bool kSum>
__global__ void __launch_bounds__(kPacketThreads)
    all_reduce_packets(const __grid_constant__ Group group,
                       const __grid_constant__ Exchange exchange) {
  const Range* shares = exchange.place;
  const int peer = static_cast<int>(threadIdx.x);
  const bool attends = blockIdx.x == 0 && peer < group.size && peer != group.rank;
  const std::uint64_t end = longest(shares, group.size);
  warm_parameters(group);
  warm_parameters(exchange);
  begin_after_previous();
  Packets<T> packets(group, exchange);
  const uint2 first = first_value(group, shares, packets);
  if (attends && shares[group.rank].bytes == 0) packets.show_presence(peer);
  send_runs(group, shares, packets, end, first);
  packets.count_operation();
  const Range& own = shares[group.rank];
  for (std::uint64_t at = first_offset(); at < own.bytes; at += offset_step()) {
    uint2 data;
    if (!reduce<T, kSum>(group, exchange, packets, own, at, data)) break;
    for (int i = 1; i < group.size; ++i) packets.send(peer_at(group, i), 1, at, data);
    packets.store(own, at, data);
  }
  for (std::uint64_t at = first_offset(); at < end && packets.alive(); at += offset_step()) {
    for (int i = 1; i < group.size; ++i) {
      const int owner = peer_at(group, i);
      uint2 data;
      if (at < shares[owner].bytes && packets.receive(owner, 1, at, data)) {
        packets.store(shares[owner], at, data);
      }
    }
  }
  if (attends && shares[peer].bytes == 0) packets.await_presence(peer);
}

/// A reduction between two ranks: the kernel for which every instruction counts. What is known
/// before the launch is computed by the host.
struct PairReduction {
  const std::byte* sent;  // values for the peer
  const std::byte* own;   // values that stay; the same in an all-reduce
  std::byte* output;
  std::uint64_t bytes;
  const std::byte* inbox;  // of the peer's packets, even side
  std::byte* outbox;       // at the peer
  std::uint64_t side_bytes;
  Progress* progress;
  Mailbox* mailbox;
  std::uint64_t timeout_ns;
  int rank;
  bool aligned;
  Arithmetic arithmetic;
};

/// Each thread has up to kPackets packets; all are sent before the first is waited for.
template <class T, bool kSum, int kPackets>
__global__ void __launch_bounds__(kPacketThreads)
    reduce_pair(const __grid_constant__ PairReduction pair) {
  const std::uint64_t first = first_offset(), step = offset_step();
  begin_after_previous();
  const std::uint32_t tag = next_tag(pair.progress);
  uint2 sent[kPackets], own[kPackets];
#pragma unroll
  for (int i = 0; i < kPackets; ++i) {
    const std::uint64_t at = first + i * step;
    if (at >= pair.bytes) continue;
    sent[i] = load_elements<T, uint2>(pair.sent + at, pair.aligned, pair.bytes - at);
    own[i] = sent[i];
    if (pair.own != pair.sent) {
      own[i] = load_elements<T, uint2>(pair.own + at, pair.aligned, pair.bytes - at);
    }
  }
  const std::uint64_t side = (tag & 1) * pair.side_bytes;
#pragma unroll
  for (int i = 0; i < kPackets; ++i) {
    const std::uint64_t at = first + i * step;
    if (at < pair.bytes) store_packet(pair.outbox + side + 2 * at, sent[i], tag);
  }
  count(pair.progress, tag);
  Watch watch(pair.progress, pair.mailbox, pair.timeout_ns);
#pragma unroll
  for (int i = 0; i < kPackets; ++i) {
    const std::uint64_t at = first + i * step;
    if (at >= pair.bytes) break;
    const std::byte* from = pair.inbox + side + 2 * at;
    Packet packet;
    if (!watch.wait(1 - pair.rank, [&] {
          packet = load_packet(from);
          return packet.low_tag == tag && packet.high_tag == tag;
        })) {
      break;
    }
    const uint2 other = make_uint2(packet.low, packet.high);
    const bool own_first = pair.rank == 0;
    Accumulators<T, uint2, kSum> sums;
    sums.begin(make_uint2(own_first ? own[i].x : other.x, own_first ? own[i].y : other.y),
               pair.arithmetic);
    sums.add(make_uint2(own_first ? other.x : own[i].x, own_first ? other.y : own[i].y),
             pair.arithmetic);
    store_elements<T, uint2>(pair.output + at, sums.result(pair.arithmetic, 2), pair.aligned,
                             pair.bytes - at);
  }
}

constexpr int kPairPackets = 2;  // enough for kPacketCapacity in kMaxBlocks blocks

unsigned block_count(const Group& group, const Range* a, const Range* b) {
  std::uint64_t bytes = 1;
  for (int i = 0; i < group.size; ++i) {
    bytes = a[i].bytes > bytes ? a[i].bytes : bytes;
    bytes = b[i].bytes > bytes ? b[i].bytes : bytes;
  }
  constexpr std::uint64_t kBlockBytes = kPacketThreads * kPacketData;
  const std::uint64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

bool is_sum(const Exchange& exchange) {
  const ReduceOp op = exchange.arithmetic.op;
  return !exchange.combine || op == ReduceOp::Sum || op == ReduceOp::Average;
}

/// True for an all-reduce or a reduce-scatter of two ranks.
bool is_pair_reduction(const Group& group, const Exchange& exchange) {
  const std::uint64_t bytes = exchange.place[group.rank].bytes;
  return group.size == 2 && exchange.combine && exchange.send[0].bytes == bytes &&
         exchange.send[1].bytes == bytes &&
         bytes <= kPairPackets * std::uint64_t{kMaxBlocks} * kPacketThreads * kPacketData;
}

void launch_pair(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) {
  const int rank = group.rank, peer = 1 - rank;
  const std::uint64_t bytes = exchange.place[rank].bytes;
  const auto box = [&](int owner, int source) {
    return group.arena[owner] + group.packets_offset +
           static_cast<std::uint64_t>(source) * group.packets_bytes;
  };
  const PairReduction pair{exchange.input + exchange.send[peer].offset,
                           exchange.input + exchange.send[rank].offset,
                           exchange.output + exchange.place[rank].offset,
                           bytes,
                           box(rank, peer),
                           box(peer, rank),
                           4 * group.packets_bytes,
                           group.progress,
                           group.mailbox,
                           group.timeout_ns,
                           rank,
                           exchange.aligned,
                           exchange.arithmetic};
  const unsigned blocks = block_count(group, exchange.send, exchange.place);
  const bool one = bytes <= std::uint64_t{kMaxBlocks} * kPacketThreads * kPacketData;
  with_element_type(dtype, [&]<class T>() {
    const auto kernel =
        is_sum(exchange) ? (one ? reduce_pair<T, true, 1> : reduce_pair<T, true, kPairPackets>)
                         : (one ? reduce_pair<T, false, 1> : reduce_pair<T, false, kPairPackets>);
    launch(kernel, blocks, kPacketThreads, group.early, stream, pair);
  });
}

}  // namespace

void launch_packets(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) {
  if (is_pair_reduction(group, exchange)) return launch_pair(group, exchange, dtype, stream);
  const unsigned blocks = block_count(group, exchange.send, exchange.place);
  with_element_type(dtype, [&]<class T>() {
    if (is_sum(exchange)) {
      launch(exchange_packets<T, true>, blocks, kPacketThreads, group.early, stream, group,
             exchange);
    } else {
      launch(exchange_packets<T, false>, blocks, kPacketThreads, group.early, stream, group,
             exchange);
    }
  });
}

void launch_packets_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                             StreamView stream) {
  const unsigned blocks = block_count(group, exchange.place, exchange.place);
  with_element_type(dtype, [&]<class T>() {
    if (is_sum(exchange)) {
      launch(all_reduce_packets<T, true>, blocks, kPacketThreads, group.early, stream, group,
             exchange);
    } else {
      launch(all_reduce_packets<T, false>, blocks, kPacketThreads, group.early, stream, group,
             exchange);
    }
  });
}

void load_packet_kernels() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    with_element_type(static_cast<DType>(dtype), [&]<class T>() {
      load_kernel(reduce_pair<T, true, 1>);
      load_kernel(reduce_pair<T, true, kPairPackets>);
      load_kernel(reduce_pair<T, false, 1>);
      load_kernel(reduce_pair<T, false, kPairPackets>);
      load_kernel(exchange_packets<T, true>);
      load_kernel(exchange_packets<T, false>);
      load_kernel(all_reduce_packets<T, true>);
      load_kernel(all_reduce_packets<T, false>);
    });
  }
}

}  // namespace tersum::gpu
