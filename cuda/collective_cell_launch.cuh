// Launches of the kernels in collective_cells.cuh and collective_pair.cuh, for one kind of cell.
#pragma once

#include <algorithm>
#include <utility>

#include "cuda/collective_kernels.hpp"
#include "cuda/collective_launch.cuh"
#include "cuda/collective_pair.cuh"

namespace tersum::gpu {

/// Kernels of at most so many threads are always launched early: two of them, one of which waits,
/// leave room for every other kernel.
inline constexpr unsigned kSmallThreads = 16384;

/// The shape of a launch.
struct CellGrid {
  unsigned blocks, threads;
  std::uint32_t rounds;  ///< of kSpans spans for each warp
};

/// Spreads the spans over as many multiprocessors as there are, then over larger blocks, then over
/// rounds.
template <class Cell, int kSpans>
CellGrid cell_grid(std::uint64_t bytes, unsigned most_blocks) {
  const std::uint64_t spans = std::max<std::uint64_t>((bytes + Cell::kSpan - 1) / Cell::kSpan, 1);
  unsigned threads = Cell::kFewestThreads;
  const auto per_block = [&] { return std::uint64_t{threads} / 32 * kSpans; };
  while (threads < Cell::kThreads && spans > per_block() * most_blocks) threads *= 2;
  const std::uint64_t wanted = (spans + per_block() - 1) / per_block();
  const std::uint64_t blocks = std::min<std::uint64_t>(wanted, most_blocks);
  return {static_cast<unsigned>(blocks), threads,
          static_cast<std::uint32_t>((wanted + blocks - 1) / blocks)};
}

inline std::uint64_t longest_run(const Group& group, const Range* a, const Range* b) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < group.size; ++i) bytes = std::max({bytes, a[i].bytes, b[i].bytes});
  return bytes;
}

inline bool is_sum(const Exchange& exchange) {
  const ReduceOp op = exchange.arithmetic.op;
  return !exchange.combine || op == ReduceOp::Sum || op == ReduceOp::Average;
}

/// All that can be computed for a group of two before the launch.
template <class Cell>
PairExchange pair_exchange(const Group& group, const Exchange& exchange) {
  const int rank = group.rank, peer = 1 - rank;
  const Inboxes& boxes = Cell::inboxes(group);
  const auto box = [&](int owner, int source) {
    return group.arena[owner] + boxes.offset + static_cast<std::uint64_t>(source) * boxes.bytes;
  };
  const auto present = [&](int owner, int source) {
    return &reinterpret_cast<Board*>(group.arena[owner])->present[source].value;
  };
  const Range& sent = exchange.send[peer];
  const Range& own = exchange.send[rank];
  const Range& kept = exchange.place[rank];
  PairExchange pair{};
  pair.sent = sent.bytes > 0 ? exchange.input + sent.offset : nullptr;
  pair.sent_bytes = static_cast<std::uint32_t>(sent.bytes);
  pair.own = exchange.input + own.offset;
  pair.output = exchange.output + exchange.place[exchange.combine ? rank : peer].offset;
  pair.received_bytes = static_cast<std::uint32_t>(exchange.place[peer].bytes);
  if (!exchange.combine && pair.own != exchange.output + kept.offset) {
    pair.kept = exchange.output + kept.offset;
    pair.kept_bytes = static_cast<std::uint32_t>(kept.bytes);
  }
  pair.inbox = box(rank, peer);
  pair.outbox = box(peer, rank);
  pair.side_bytes = static_cast<std::uint32_t>(2 * boxes.phases * boxes.bytes);
  pair.show = sent.bytes == 0 ? present(peer, rank) : nullptr;
  pair.watch = pair.received_bytes == 0 ? present(rank, peer) : nullptr;
  pair.progress = group.progress;
  pair.mailbox = group.mailbox;
  pair.timeout_ns = group.timeout_ns;
  pair.rank = rank;
  pair.aligned = exchange.aligned;
  pair.arithmetic = exchange.arithmetic;
  return pair;
}

inline PairWork work_of(const PairExchange& pair, const Exchange& exchange, std::uint32_t vector) {
  const Arithmetic& arithmetic = exchange.arithmetic;
  const std::uint32_t sizes = pair.sent_bytes | pair.received_bytes | pair.kept_bytes;
  const bool whole = pair.aligned && sizes % vector == 0;
  if (!exchange.combine) return whole ? PairWork::PlainCopy : PairWork::Copy;
  const bool scaled = arithmetic.pre_scale != 1.0 || arithmetic.post_scale != 1.0;
  if (whole && !scaled && arithmetic.op == ReduceOp::Sum) return PairWork::PlainSum;
  return is_sum(exchange) ? PairWork::Sum : PairWork::Reduce;
}

/// Calls function with a kernel of a pair.
template <class Cell, int kSpans, bool kMany, class Function>
void with_pair_kernel(DType dtype, PairWork work, Function&& function) {
  if (work == PairWork::PlainCopy) {
    return function(exchange_pair<Cell, std::int64_t, PairWork::PlainCopy, kSpans, kMany>);
  }
  if (work == PairWork::Copy) {
    return with_copy_type(
        dtype, [&]<class T>() { function(exchange_pair<Cell, T, PairWork::Copy, kSpans, kMany>); });
  }
  with_element_type(dtype, [&]<class T>() {
    if (work == PairWork::PlainSum) {
      function(exchange_pair<Cell, T, PairWork::PlainSum, kSpans, kMany>);
    } else if (work == PairWork::Sum) {
      function(exchange_pair<Cell, T, PairWork::Sum, kSpans, kMany>);
    } else {
      function(exchange_pair<Cell, T, PairWork::Reduce, kSpans, kMany>);
    }
  });
}

template <class Cell>
void launch_pair(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) {
  PairExchange pair = pair_exchange<Cell>(group, exchange);
  const PairWork work = work_of(pair, exchange, Cell::kVector);
  const std::uint64_t bytes = longest_run(group, exchange.send, exchange.place);
  CellGrid grid = cell_grid<Cell, 1>(bytes, group.cell_blocks);
  const bool early = group.early || grid.blocks * grid.threads <= kSmallThreads;
  const auto go = [&](auto kernel) {
    launch(kernel, grid.blocks, grid.threads, early, stream, pair);
  };
  if (grid.rounds == 1) return with_pair_kernel<Cell, 1, false>(dtype, work, go);
  grid = cell_grid<Cell, Cell::kSpans>(bytes, group.cell_blocks);
  pair.rounds = grid.rounds;
  with_pair_kernel<Cell, Cell::kSpans, true>(dtype, work, go);
}

template <class Cell>
void launch_cells(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) {
  if (group.size == 2) return launch_pair<Cell>(group, exchange, dtype, stream);
  const CellGrid grid =
      cell_grid<Cell, 1>(longest_run(group, exchange.send, exchange.place), group.cell_blocks);
  with_element_type(dtype, [&]<class T>() {
    const auto kernel =
        is_sum(exchange) ? exchange_cells<Cell, T, true> : exchange_cells<Cell, T, false>;
    launch(kernel, grid.blocks, grid.threads, group.early, stream, group, exchange);
  });
}

template <class Cell>
void launch_cells_two_shot(const Group& group, const Exchange& exchange, DType dtype,
                           StreamView stream) {
  const CellGrid grid =
      cell_grid<Cell, 1>(longest_run(group, exchange.place, exchange.place), group.cell_blocks);
  with_element_type(dtype, [&]<class T>() {
    const auto kernel =
        is_sum(exchange) ? all_reduce_cells<Cell, T, true> : all_reduce_cells<Cell, T, false>;
    launch(kernel, grid.blocks, grid.threads, group.early, stream, group, exchange);
  });
}

template <class Cell>
void load_cell_kernels() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    const auto load = [](auto kernel) { load_kernel(kernel); };
    for (const PairWork work : {PairWork::Copy, PairWork::PlainCopy, PairWork::PlainSum,
                                PairWork::Sum, PairWork::Reduce}) {
      with_pair_kernel<Cell, 1, false>(static_cast<DType>(dtype), work, load);
      with_pair_kernel<Cell, Cell::kSpans, true>(static_cast<DType>(dtype), work, load);
    }
    with_element_type(static_cast<DType>(dtype), []<class T>() {
      load_kernel(exchange_cells<Cell, T, true>);
      load_kernel(exchange_cells<Cell, T, false>);
      load_kernel(all_reduce_cells<Cell, T, true>);
      load_kernel(all_reduce_cells<Cell, T, false>);
    });
  }
}

}  // namespace tersum::gpu
