// Collectives in cells: data travel with flags in the same access, so that a value and the news of
// its arrival are one. A warp moves a span of data at a time; what a cell is (how the data of a
// span lie on the wire) is a policy: PacketCell and LineCell.
//
// The flag is the tag of the operation, which grows by one each time; the inbox has two sides, used
// in turn. A side is written again two operations later, which is safe without a barrier: a rank
// begins operation k only after it has heard from every peer in operation k - 1, hence after every
// peer has ended operation k - 2. Ranks from which no data come say that they are there through
// Board::present. Flags lie at the same places in every operation, so that data are never taken for
// flags.
//
// A cell policy has:
//   Data                what a lane holds of a span
//   kSpan               bytes of a span's data
//   kFewestThreads, kThreads   of a block
//   kSpans              that a warp of a pair kernel moves at once, when it moves many
//   inboxes             where cells of this kind lie in the arena
//   kVector             bytes of a tensor that are moved together
//   load, store         a lane's part of a span of a tensor; beyond the run's end zeros, nothing
//   send                puts a lane's part into the cells of a span
//   choose              one of two Data, by value: a choice between references would put the
//   vectors
//                       into memory
//   await               waits until a lane's part is there; all lanes of a warp together
#pragma once

#include "cuda/reduction.cuh"
#include "cuda/signal.cuh"

namespace tersum::gpu {

__device__ inline std::uint32_t next_tag(const Progress* progress) {
  const std::uint32_t last = progress->cells[blockIdx.x];
  return last == 0xffffffffu ? 2 : last + 1;  // 0 is what an inbox holds before its first use
}

/// Counts the operation for blocks that are not there, too; called by all threads of the block.
__device__ inline void count(Progress* progress, std::uint32_t tag) {
  __syncthreads();  // all have read the tag
  for (unsigned block = blockIdx.x + threadIdx.x * gridDim.x; block < kMaxBlocks;
       block += blockDim.x * gridDim.x) {
    progress->cells[block] = tag;
  }
}

/// The spans of a warp: first_span(), then every span_step()th.
__device__ inline std::uint32_t first_span() {
  return blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
}

__device__ inline std::uint32_t span_step() {
  return gridDim.x * (blockDim.x / 32);
}

/// One thread's view of an operation.
template <class Cell, class T>
class Cells {
 public:
  using Data = typename Cell::Data;

  __device__ Cells(const Group& group, const Exchange& exchange)
      : group_(group), exchange_(exchange), watch_(group) {
    tag_ = next_tag(group.progress);
  }

  /// Counts this operation; called once by all threads of the block.
  __device__ void count_operation() const { count(group_.progress, tag_); }

  __device__ bool alive() const { return alive_; }

  /// Cells are for runs of some MiB at most.
  __device__ static std::uint32_t bytes_of(const Range& run) {
    return static_cast<std::uint32_t>(run.bytes);
  }

  __device__ static bool has(const Range& run, std::uint32_t span) {
    return span * Cell::kSpan < bytes_of(run);
  }

  __device__ Data load(const Range& run, std::uint32_t span) const {
    return Cell::template load<T, Vectors::Any>(exchange_.input + run.offset, span,
                                                exchange_.aligned, bytes_of(run));
  }

  __device__ void store(const Range& run, std::uint32_t span, const Data& data) const {
    Cell::template store<T, Vectors::Any>(exchange_.output + run.offset, span, data,
                                          exchange_.aligned, bytes_of(run));
  }

  __device__ void send(int peer, int phase, const Range& run, std::uint32_t span,
                       const Data& data) const {
    Cell::send(inbox(peer, phase, group_.rank), span, data, tag_, bytes_of(run));
  }

  /// Waits for the span of `source`; false, for the whole warp, if it will not come.
  __device__ bool receive(int source, int phase, const Range& run, std::uint32_t span, Data& data) {
    const std::byte* from = inbox(group_.rank, phase, source);
    alive_ = alive_ && Cell::await(watch_, source, from, span, tag_, bytes_of(run), data);
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
  __device__ std::byte* inbox(int owner, int phase, int source) const {
    const Inboxes& boxes = Cell::inboxes(group_);
    const std::uint32_t side = (tag_ & 1) * boxes.phases + static_cast<std::uint32_t>(phase);
    const std::uint32_t index =
        side * static_cast<std::uint32_t>(group_.size) + static_cast<std::uint32_t>(source);
    return group_.arena[owner] + boxes.offset + index * boxes.bytes;
  }

  const Group& group_;
  const Exchange& exchange_;
  Watch watch_;
  std::uint32_t tag_;
  bool alive_ = true;
};

__device__ inline int peer_at(const Group& group, int distance) {
  const int peer = group.rank + distance;
  return peer < group.size ? peer : peer - group.size;
}

__device__ inline Range longest(const Range* runs, int size) {
  Range run{0, 0};
  for (int i = 0; i < size; ++i) run.bytes = max(run.bytes, runs[i].bytes);
  return run;
}

/// Reduces a span of all ranks; false if some did not come.
template <class Cell, bool kSum, class T>
__device__ bool reduce(const Group& group, const Exchange& exchange, Cells<Cell, T>& cells,
                       const Range& own, std::uint32_t span, typename Cell::Data& result) {
  Accumulators<T, typename Cell::Data, kSum> sums;
  for (int source = 0; source < group.size; ++source) {
    typename Cell::Data data;
    if (source == group.rank) {
      data = cells.load(own, span);
    } else if (!cells.receive(source, 0, own, span, data)) {
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
template <class Cell, class T>
__device__ void send_runs(const Group& group, const Range* runs, const Cells<Cell, T>& cells,
                          const Range& all, const typename Cell::Data& first) {
  for (std::uint32_t span = first_span(); cells.has(all, span); span += span_step()) {
    for (int distance = 1; distance < group.size; ++distance) {
      const int peer = peer_at(group, distance);
      if (!cells.has(runs[peer], span)) continue;
      const bool have = distance == 1 && span == first_span();
      cells.send(peer, 0, runs[peer], span, have ? first : cells.load(runs[peer], span));
    }
  }
}

/// What a thread sends first: loaded while the tag is still on its way.
template <class Cell, class T>
__device__ typename Cell::Data first_value(const Group& group, const Range* runs,
                                           const Cells<Cell, T>& cells) {
  const int next = peer_at(group, 1);
  const bool any = next != group.rank && cells.has(runs[next], first_span());
  return any ? cells.load(runs[next], first_span()) : typename Cell::Data{};
}

template <class Cell, class T>
__device__ void place_runs(const Group& group, const Exchange& exchange, Cells<Cell, T>& cells) {
  const Range all = longest(exchange.place, group.size);
  for (std::uint32_t span = first_span(); cells.has(all, span); span += span_step()) {
    for (int distance = 0; distance < group.size; ++distance) {
      const int source = peer_at(group, distance);
      const Range& run = exchange.place[source];
      if (!cells.has(run, span)) continue;
      typename Cell::Data data;
      if (source == group.rank) {
        data = cells.load(exchange.send[source], span);
      } else if (!cells.receive(source, 0, run, span, data)) {
        return;
      }
      cells.store(run, span, data);
    }
  }
}

/// Any exchange between any number of ranks.
template <class Cell, class T, bool kSum>
__global__ void __launch_bounds__(Cell::kThreads, 1)
    exchange_cells(const __grid_constant__ Group group, const __grid_constant__ Exchange exchange) {
  const int peer = static_cast<int>(threadIdx.x);
  const bool attends = blockIdx.x == 0 && peer < group.size && peer != group.rank;
  const Range all = longest(exchange.send, group.size);
  warm_parameters(group);
  warm_parameters(exchange);
  begin_after_previous();
  Cells<Cell, T> cells(group, exchange);
  const auto first = first_value(group, exchange.send, cells);
  if (attends && exchange.send[peer].bytes == 0) cells.show_presence(peer);
  send_runs(group, exchange.send, cells, all, first);
  cells.count_operation();
  if (!exchange.combine) {
    place_runs(group, exchange, cells);
  } else {
    const Range& run = exchange.place[group.rank];
    for (std::uint32_t span = first_span(); cells.has(run, span); span += span_step()) {
      typename Cell::Data data;
      if (!reduce<Cell, kSum>(group, exchange, cells, exchange.send[group.rank], span, data)) break;
      cells.store(run, span, data);
    }
  }
  if (attends && exchange.place[peer].bytes == 0) cells.await_presence(peer);
}

/// An all-reduce in two steps: place[r] is the share that rank r reduces.
template <class Cell, class T, bool kSum>
__global__ void __launch_bounds__(Cell::kThreads, 1)
    all_reduce_cells(const __grid_constant__ Group group,
                     const __grid_constant__ Exchange exchange) {
  const Range* shares = exchange.place;
  const int peer = static_cast<int>(threadIdx.x);
  const bool attends = blockIdx.x == 0 && peer < group.size && peer != group.rank;
  const Range all = longest(shares, group.size);
  warm_parameters(group);
  warm_parameters(exchange);
  begin_after_previous();
  Cells<Cell, T> cells(group, exchange);
  const auto first = first_value(group, shares, cells);
  if (attends && shares[group.rank].bytes == 0) cells.show_presence(peer);
  send_runs(group, shares, cells, all, first);
  cells.count_operation();
  const Range& own = shares[group.rank];
  for (std::uint32_t span = first_span(); cells.has(own, span); span += span_step()) {
    typename Cell::Data data;
    if (!reduce<Cell, kSum>(group, exchange, cells, own, span, data)) break;
    for (int i = 1; i < group.size; ++i) cells.send(peer_at(group, i), 1, own, span, data);
    cells.store(own, span, data);
  }
  for (std::uint32_t span = first_span(); cells.has(all, span) && cells.alive();
       span += span_step()) {
    for (int i = 1; i < group.size; ++i) {
      const int owner = peer_at(group, i);
      typename Cell::Data data;
      if (cells.has(shares[owner], span) && cells.receive(owner, 1, shares[owner], span, data)) {
        cells.store(shares[owner], span, data);
      }
    }
  }
  if (attends && shares[peer].bytes == 0) cells.await_presence(peer);
}

}  // namespace tersum::gpu
