// Collectives on device memory with known results, for any communicator. They are put into
// `stream`; the calling thread's device is the rank's.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "src/device_support.hpp"

namespace tersum::test {

/// Reduce-scatter and reduce.
inline void check_reductions(Communicator& communicator, gpu::StreamView stream) {
  constexpr std::size_t kCount = 1'200'007;
  const int rank = communicator.rank(), ranks = communicator.size();
  const auto n = static_cast<std::size_t>(ranks), me = static_cast<std::size_t>(rank);
  const CallOptions options{.stream = stream};
  Tensor all(values_of(rank, n * kCount), stream), part(std::vector<float>(kCount), stream);
  communicator.reduce_scatter(all.data(), part.data(), kCount, DType::Float32, ReduceOp::Sum,
                              options);
  const auto sums = sum_of(ranks, n * kCount);
  const auto mine = sums.begin() + static_cast<std::ptrdiff_t>(me * kCount);
  EXPECT_EQ(part.read(stream),
            std::vector<float>(mine, mine + static_cast<std::ptrdiff_t>(kCount)));

  Tensor one(values_of(rank, kCount), stream), sum(std::vector<float>(kCount), stream);
  const int root = ranks - 1;
  communicator.reduce(one.data(), rank == root ? sum.data() : nullptr, kCount, DType::Float32,
                      ReduceOp::Sum, root, options);
  if (rank == root) {
    EXPECT_EQ(sum.read(stream), sum_of(ranks, kCount));
  }
  stream.synchronize();
}

/// All-gather, broadcast and all-to-all.
inline void check_moves(Communicator& communicator, gpu::StreamView stream) {
  constexpr std::size_t kCount = 1'200'007;
  const int rank = communicator.rank(), ranks = communicator.size();
  const auto n = static_cast<std::size_t>(ranks), me = static_cast<std::size_t>(rank);
  const CallOptions options{.stream = stream};
  Tensor one(values_of(rank, kCount), stream), all(std::vector<float>(n * kCount), stream);
  communicator.all_gather(one.data(), all.data(), kCount, DType::Float32, options);
  const auto gathered = all.read(stream);
  for (std::size_t r = 0; r < n; ++r) {
    const auto begin = gathered.begin() + static_cast<std::ptrdiff_t>(r * kCount);
    EXPECT_EQ(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(kCount)),
              values_of(static_cast<int>(r), kCount));
  }

  communicator.broadcast(one.data(), kCount, DType::Float32, ranks - 1, options);
  EXPECT_EQ(one.read(stream), values_of(ranks - 1, kCount));

  Tensor parts(values_of(rank, n * kCount), stream);
  communicator.all_to_all(parts.data(), all.data(), kCount, DType::Float32, options);
  const auto exchanged = all.read(stream);
  for (std::size_t r = 0; r < n; ++r) {
    const auto theirs = values_of(static_cast<int>(r), n * kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(exchanged[r * kCount + i], theirs[me * kCount + i]);
  }
}

/// Everybody sends to the next rank, then receives from the one before.
inline void check_ring(Communicator& communicator, gpu::StreamView stream) {
  constexpr std::size_t kCount = 3'000'001;
  const int rank = communicator.rank(), ranks = communicator.size();
  const CallOptions options{.stream = stream};
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  Tensor mine(values_of(rank, kCount), stream), theirs(std::vector<float>(kCount), stream);
  communicator  // the first call is a collective
      .all_reduce(theirs.data(), theirs.data(), 1, DType::Float32, ReduceOp::Sum, options)
      .wait();
  const Work sent = communicator.send(mine.data(), kCount, DType::Float32, next, options);
  const Work received =
      communicator.receive(theirs.data(), kCount, DType::Float32, previous, options);
  EXPECT_EQ(theirs.read(stream), values_of(previous, kCount));
  EXPECT_TRUE(succeeds(sent));
  EXPECT_TRUE(succeeds(received));
}

}  // namespace tersum::test
