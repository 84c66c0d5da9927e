// Collectives in which ranks have counts of their own, and communicators that are used again; ranks
// are threads of one process, which share GPUs if need be.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "cuda/collective_cases.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

using Counts = std::vector<std::size_t>;

PeerSettings test_settings() {
  PeerSettings settings;
  settings.timeout = std::chrono::milliseconds(4'000);
  settings.cell_blocks = 16;  // ranks that share a GPU must fit on it together
  settings.push_blocks = 16;
  settings.staging_bytes = std::size_t{1} << 20;
  settings.staging_blocks = 16;
  return settings;
}

std::size_t sum_of(const Counts& counts, std::size_t first) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(first),
                         std::size_t{0});
}

/// A rank with pinned memory: other host memory may wait for another rank's kernels.
class UnevenRank {
 public:
  explicit UnevenRank(CollectiveRank& rank) : rank_(rank), host_(CollectiveRank::kCapacity) {}

  std::size_t size() const { return static_cast<std::size_t>(rank_.size()); }
  std::size_t own() const { return static_cast<std::size_t>(rank_.rank()); }
  PeerCommunicator& peers() const { return rank_.communicator(); }

  HostTensor values(DType dtype, std::size_t count, std::size_t rank) const {
    return make_values(dtype, count, static_cast<int>(rank), 5);
  }
  void write(std::byte* to, const HostTensor& values) {
    std::copy(values.begin(), values.end(), host_.data());
    copy(to, host_.data(), values.size());
  }
  HostTensor read(const std::byte* from, std::size_t bytes) {
    copy(host_.data(), from, bytes);
    return {host_.data(), host_.data() + bytes};
  }

  void check_all_gather(const Counts& counts, DType dtype, Algorithm algorithm, bool in_place) {
    const std::size_t element = element_bytes(dtype), all = sum_of(counts, size());
    std::byte* const output = rank_.output();
    std::byte* const input =
        in_place ? output + sum_of(counts, own()) * element : rank_.input() + element;
    write(output, HostTensor((all + 1) * element, std::byte{0xa5}));
    write(input, values(dtype, counts[own()], own()));
    peers().all_gather_v(input, output, counts, dtype, rank_.stream(), algorithm);
    HostTensor expected;
    for (std::size_t r = 0; r < size(); ++r) {
      const HostTensor theirs = values(dtype, counts[r], r);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    expected.resize((all + 1) * element, std::byte{0xa5});  // nothing is written behind it
    ASSERT_TRUE(read(output, expected.size()) == expected)
        << gpu::to_string(algorithm) << ", " << all << " " << tersum::to_string(dtype);
    ASSERT_TRUE(peers().status().is_ok()) << peers().status().to_string();
  }

  /// count(from, to): elements.
  void check_all_to_all(const std::function<std::size_t(std::size_t, std::size_t)>& count,
                        DType dtype) {
    const std::size_t element = element_bytes(dtype);
    Counts sends, receives;
    HostTensor expected;
    for (std::size_t r = 0; r < size(); ++r) {
      sends.push_back(count(own(), r));
      receives.push_back(count(r, own()));
      Counts theirs;
      for (std::size_t to = 0; to < size(); ++to) theirs.push_back(count(r, to));
      const HostTensor sent = values(dtype, sum_of(theirs, size()), r);
      const auto begin =
          sent.begin() + static_cast<std::ptrdiff_t>(sum_of(theirs, own()) * element);
      expected.insert(expected.end(), begin,
                      begin + static_cast<std::ptrdiff_t>(receives[r] * element));
    }
    const std::size_t bytes = expected.size();
    expected.resize(bytes + element, std::byte{0xa5});
    write(rank_.output(), HostTensor(expected.size(), std::byte{0xa5}));
    write(rank_.input(), values(dtype, sum_of(sends, size()), own()));
    peers().all_to_all_v(rank_.input(), sends, rank_.output(), receives, dtype, rank_.stream());
    ASSERT_TRUE(read(rank_.output(), expected.size()) == expected)
        << bytes << " bytes of " << tersum::to_string(dtype);
    ASSERT_TRUE(peers().status().is_ok()) << peers().status().to_string();
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) {
    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, rank_.stream().get()), "copy");
    rank_.stream().synchronize();
  }

  CollectiveRank& rank_;
  PinnedBuffer host_;
};

class UnevenOfRanks : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // as in collective_test.cpp
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }

  template <class Body>
  void in_ranks(const Body& body) {
    run_threads(GetParam(), [&](const RankRole& role) {
      CollectiveRank rank(role, static_cast<int>(devices().size()), test_settings());
      UnevenRank uneven(rank);
      const std::byte nothing{};
      role.all_gather(std::span(&nothing, 1));  // nobody allocates any more
      body(rank, uneven, role);
      rank.stream().synchronize();
      rank.communicator().close();
    });
  }
};

constexpr std::size_t kScales[] = {1, 1000, 30'001, 700'003};

TEST_P(UnevenOfRanks, GatherRunsOfAnyLength) {
  in_ranks([](CollectiveRank&, UnevenRank& rank, const RankRole&) {
    for (const std::size_t scale : kScales) {
      Counts counts;
      for (std::size_t r = 0; r < rank.size(); ++r) counts.push_back((3 * r + 2) % 4 * scale);
      for (const bool in_place : {false, true}) {
        rank.check_all_gather(counts, DType::Float32, Algorithm::Auto, in_place);
        rank.check_all_gather(counts, DType::UInt8, Algorithm::Auto, in_place);
        rank.check_all_gather(counts, DType::Float16, Algorithm::Push, in_place);
        if (scale > 30'001) continue;
        rank.check_all_gather(counts, DType::Float32, Algorithm::Packets, in_place);
        if (rank.peers().all_reduce_algorithm(1 << 20) == Algorithm::Lines)
          rank.check_all_gather(counts, DType::Int16, Algorithm::Lines, in_place);
      }
    }
    rank.check_all_gather(Counts(rank.size(), 0), DType::Float32, Algorithm::Auto, false);
  });
}

TEST_P(UnevenOfRanks, ExchangeRunsOfAnyLength) {
  in_ranks([](CollectiveRank&, UnevenRank& rank, const RankRole&) {
    for (const std::size_t scale : kScales) {
      const auto some = [&](std::size_t from, std::size_t to) {
        return (5 * from + 3 * to) % 4 * scale;
      };
      const auto one_way = [&](std::size_t from, std::size_t to) {
        return from == 0 && to + 1 == rank.size() ? scale : 0;
      };
      for (const DType dtype : {DType::Float32, DType::UInt8, DType::BFloat16}) {
        rank.check_all_to_all(some, dtype);
        rank.check_all_to_all(one_way, dtype);
      }
    }
    rank.check_all_to_all([](std::size_t, std::size_t) { return std::size_t{0}; }, DType::Int64);
  });
}

TEST_P(UnevenOfRanks, ExchangesOfACopyEngineAreOnesOfAPair) {
  if (GetParam() != 2) GTEST_SKIP() << "copy engines serve two ranks";
  in_ranks([](CollectiveRank&, UnevenRank& rank, const RankRole&) {
    const Counts counts{3, 9'000'001};  // one of them is many pieces
    rank.check_all_gather(counts, DType::Float32, Algorithm::Auto, false);
    rank.check_all_to_all(
        [](std::size_t from, std::size_t to) {
          return from == to ? 10'001 : from == 0 ? 8'500'000 : 7;
        },
        DType::Float32);
  });
}

TEST_P(UnevenOfRanks, ACommunicatorIsRenewedAfterAFailure) {
  in_ranks([](CollectiveRank& rank, UnevenRank& uneven, const RankRole& role) {
    const Counts counts(uneven.size(), 100'000);
    for (int i = 0; i < 3; ++i) {
      uneven.check_all_gather(counts, DType::Float32, Algorithm::Auto, false);
      CollectiveCase test;
      test.count = 300'000;
      if (uneven.size() == 2 && i > 0) test.algorithm = Algorithm::CopyEngines;
      if (rank.rank() == 0) rank.submit(test, rank.input(), rank.output());  // waits for others
      rank.communicator().abort();
      rank.stream().synchronize();
      if (rank.rank() == 0 && uneven.size() > 1) {
        EXPECT_EQ(rank.communicator().status().code(), Code::Aborted);
      }
      rank.communicator().renew(role.all_gather);
      EXPECT_TRUE(rank.communicator().status().is_ok());
      rank.check(test, 3);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, UnevenOfRanks, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(UnevenOfRanks, CountsThatCannotBeRightAreRefused) {
  in_ranks([](CollectiveRank& rank, UnevenRank& uneven, const RankRole&) {
    PeerCommunicator& peers = rank.communicator();
    const Counts right(uneven.size(), 1), wrong(uneven.size() + 1, 1);
    Counts other = right;
    ++other[uneven.own()];
    EXPECT_THROW(peers.all_gather_v(rank.input(), rank.output(), wrong, DType::Int8, rank.stream()),
                 Error);
    EXPECT_THROW(
        peers.all_to_all_v(rank.input(), wrong, rank.output(), right, DType::Int8, rank.stream()),
        Error);
    EXPECT_THROW(
        peers.all_to_all_v(rank.input(), right, rank.output(), other, DType::Int8, rank.stream()),
        Error);
  });
}

}  // namespace
}  // namespace tersum::gpu
