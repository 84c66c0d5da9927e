// Collectives on device memory with known results, for any communicator. They are put into
// `stream`; the calling thread's device is the rank's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "src/device/stream_gate.hpp"
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

/// How many elements rank `from` sends to rank `to`: some none, some many slices.
inline std::size_t uneven_count(int from, int to) {
  return static_cast<std::size_t>((from * 5 + to * 3) % 4) * 401'003u;
}

/// `counts[r]` elements of each rank r: what rank r has from `offset(r)` on.
template <class Offset>
std::vector<float> packed(const std::vector<std::size_t>& counts, const Offset& offset) {
  std::vector<float> all;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const std::size_t begin = offset(static_cast<int>(r));
    const auto theirs = values_of(static_cast<int>(r), begin + counts[r]);
    all.insert(all.end(), theirs.begin() + static_cast<std::ptrdiff_t>(begin), theirs.end());
  }
  return all;
}

/// All-gather with counts, in place and not; the last rank has nothing.
inline void check_uneven_gather(Communicator& communicator, gpu::StreamView stream) {
  const int rank = communicator.rank(), ranks = communicator.size();
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r)
    counts.push_back(static_cast<std::size_t>(ranks - 1 - r) * 700'001u + (ranks == 1));
  const auto own = counts[static_cast<std::size_t>(rank)];
  const auto expected = packed(counts, [](int) { return std::size_t{0}; });
  const CallOptions options{.stream = stream};
  Tensor mine(values_of(rank, own), stream), all(std::vector<float>(expected.size()), stream);
  const Work work =
      communicator.all_gather_v(mine.data(), all.data(), counts, DType::Float32, options);
  EXPECT_EQ(all.read(stream), expected);
  EXPECT_TRUE(succeeds(work));

  const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
  std::vector<float> only_own(expected.size(), -1.0f);
  std::copy_n(values_of(rank, own).begin(), own,
              only_own.begin() + static_cast<std::ptrdiff_t>(begin));
  Tensor in_place(only_own, stream);
  communicator.all_gather_v(in_place.data() + begin, in_place.data(), counts, DType::Float32,
                            options);
  EXPECT_EQ(in_place.read(stream), expected);
}

/// All-to-all with counts: everybody's are others.
inline void check_uneven_exchange(Communicator& communicator, gpu::StreamView stream) {
  const int rank = communicator.rank(), ranks = communicator.size();
  std::vector<std::size_t> sends, receives;
  for (int r = 0; r < ranks; ++r) {
    sends.push_back(uneven_count(rank, r));
    receives.push_back(uneven_count(r, rank));
  }
  const auto expected = packed(receives, [&](int from) {
    std::size_t before = 0;
    for (int to = 0; to < rank; ++to) before += uneven_count(from, to);
    return before;
  });
  const std::size_t sent = std::accumulate(sends.begin(), sends.end(), std::size_t{0});
  Tensor input(values_of(rank, sent), stream), output(std::vector<float>(expected.size()), stream);
  for (int i = 0; i < 3; ++i) {
    const Work work = communicator.all_to_all_v(input.data(), sends, output.data(), receives,
                                                DType::Float32, {.stream = stream});
    EXPECT_EQ(output.read(stream), expected);
    EXPECT_TRUE(succeeds(work));
  }
  EXPECT_EQ(input.read(stream), values_of(rank, sent));
}

/// Ranks 0 and 1 exchange something, and the others nothing; then nobody anything.
inline void check_idle_exchange(Communicator& communicator, gpu::StreamView stream) {
  const int rank = communicator.rank(), other = 1 - rank;
  std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), 0);
  const std::vector<std::size_t> none = counts;
  if (rank < 2 && communicator.size() > 1) counts[static_cast<std::size_t>(other)] = 1000;
  Tensor input(values_of(rank, 1000), stream), output(std::vector<float>(1000), stream);
  EXPECT_TRUE(succeeds(communicator.all_to_all_v(input.data(), counts, output.data(), counts,
                                                 DType::Float32, {.stream = stream})));
  if (counts != none) {
    EXPECT_EQ(output.read(stream), values_of(other, 1000));
  }
  EXPECT_TRUE(succeeds(
      communicator.all_to_all_v(nullptr, none, nullptr, none, DType::Float32, {.stream = stream})));
}

/// A rank whose stream has not come so far holds those of all others. For ranks that are threads.
inline void check_barrier(World& world, int rank, gpu::StreamView stream) {
  static std::atomic<int> seen{0};
  Communicator& communicator = world[static_cast<std::size_t>(rank)];
  const CallOptions options{.stream = stream};
  EXPECT_TRUE(succeeds(communicator.barrier(options)));
  if (rank == 0) {
    runtime::StreamGate gate;
    const auto ticket = gate.take();
    gate.hold(stream, ticket);
    const Work work = communicator.barrier(options);
    while (seen < communicator.size() - 1) std::this_thread::yield();
    seen = 0;
    EXPECT_FALSE(work.done());
    gate.open(ticket);
    EXPECT_TRUE(succeeds(work));
    stream.synchronize();
  } else {
    const Work work = communicator.barrier(options);
    EXPECT_FALSE(work.wait(std::chrono::milliseconds(50)));
    EXPECT_FALSE(stream.is_done());
    ++seen;
    EXPECT_TRUE(succeeds(work));
    stream.synchronize();
  }
}

inline std::size_t free_device_bytes() {
  std::size_t available = 0, all = 0;
  gpu::check(cudaMemGetInfo(&available, &all), "cudaMemGetInfo");
  return available;
}

/// Groups that are made, used and destroyed, some after a failure, leave no more device memory
/// taken than one or two of them do.
inline void check_that_groups_leave_nothing(Communicator& communicator, gpu::StreamView stream,
                                            bool may_fail) {
  constexpr int kGroups = 20;
  constexpr std::size_t kAllowed = std::size_t{64} << 20;  // of the driver's own
  const int rank = communicator.rank(), ranks = communicator.size();
  const CallOptions options{.stream = stream};
  Tensor tensor(values_of(rank, 300'001), stream);
  std::size_t before = 0;
  for (int i = 0; i < kGroups; ++i) {
    if (i == 4) before = free_device_bytes();
    Communicator group = communicator.split(0, rank);
    Tensor result(std::vector<float>(tensor.count()), stream);
    const Work work = group.all_reduce(tensor.data(), result.data(), tensor.count(), DType::Float32,
                                       ReduceOp::Sum, options);
    EXPECT_EQ(result.read(stream), sum_of(ranks, tensor.count())) << i;
    EXPECT_TRUE(succeeds(work));
    if (!may_fail || i % 2 == 0) continue;
    EXPECT_TRUE(succeeds(group.barrier()));
    if (rank == 0) group.abort("enough");
    EXPECT_EQ(outcome(group.barrier()).code(), Code::Aborted);
  }
  EXPECT_TRUE(succeeds(communicator.barrier()));
  const std::size_t after = free_device_bytes();
  EXPECT_LT(before - std::min(before, after), kAllowed);
}

/// Ranks that disagree about the counts of a pair get Mismatch.
inline void check_exchange_of_other_counts(Communicator& communicator, gpu::StreamView stream) {
  const int rank = communicator.rank();
  std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), 1000);
  std::vector<std::size_t> receives = counts;
  if (rank == 1) receives[0] = 900;  // rank 0 sends more
  Tensor input(values_of(rank, 1000 * counts.size()), stream),
      output(std::vector<float>(1000 * counts.size()), stream);
  const Work work = communicator.all_to_all_v(input.data(), counts, output.data(), receives,
                                              DType::Float32, {.stream = stream});
  const Status status = outcome(work);
  EXPECT_EQ(status.code(), Code::Mismatch);
  EXPECT_NE(status.message().find("rank 0 sent 1000 elements to rank 1, which expected 900"),
            std::string::npos)
      << status.message();
  stream.synchronize();
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
