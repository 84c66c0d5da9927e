// Cases that nobody thought of, against the CPU: drawn from gtest's seed, so that more of them are
//   cuda_test --gtest_filter='Random*' --gtest_shuffle --gtest_random_seed=1 --gtest_repeat=100
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "conformance/draw.hpp"
#include "cuda/collective_cases.hpp"
#include "cuda/compressed_support.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/twin_support.hpp"

namespace tersum::gpu::test {
namespace {

using tersum::test::Draw;
using tersum::test::draw_spec;

/// Runs of several kinds and magnitudes.
Floats draw_input(Draw& draw, std::size_t count) {
  Floats input;
  while (input.size() < count) {
    const std::size_t run = std::min(count - input.size(), draw.size_up_to(count));
    Floats part = make_input(input_kinds()[draw.below(input_kinds().size())], run, draw.seed());
    const float scale = std::ldexp(1.0f, static_cast<int>(draw.below(60)) - 30);
    for (float& value : part) value *= scale;
    input.insert(input.end(), part.begin(), part.end());
  }
  return input;
}

class Random : public testing::Test {
 protected:
  void SetUp() override {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // as in collective_test.cpp
    if (!has_device()) GTEST_SKIP() << "no GPU";
  }
};

/// One gradient, sent step by step, whole or in parts.
void compare_with_cpu(Draw& draw) {
  const std::string spec = draw_spec(draw);
  const auto compressor = make_compressor(spec);
  const std::size_t block = compressor->traits().block_count;
  const std::size_t count = draw.count_up_to(draw.one_in(8) ? 3'000'000 : 100'000, block);
  SCOPED_TRACE(spec + ", " + std::to_string(count) + " elements");
  Bench bench(spec, count, draw.below(4));
  bench.make_state(count);
  const auto state = compressor->make_state(count);
  for (std::size_t step = 0, steps = 1 + draw.below(4); step < steps; ++step) {
    const Floats input = draw_input(draw, count);
    const bool whole = block == 0 || draw.one_in(2);
    std::size_t begin = 0, end = count;
    do {
      if (!whole)
        end = std::min(count, begin + block * (1 + draw.below(1 + (count - begin) / block)));
      const auto part = std::span(input).subspan(begin, end - begin);
      const SliceContext context{draw.seed(), step, draw.seed(), begin,
                                 static_cast<std::uint32_t>(draw.below(9))};
      const Bytes payload = tersum::test::encode(*compressor, part, context, state.get());
      ASSERT_TRUE(bench.compress(part, context) == payload) << "step " << step;
      const Floats before = draw_input(draw, part.size());
      Floats sum = before, cleared = before;
      compressor->decompress_add(payload, context, 0.7f, sum);
      compressor->clear_sent(payload, context, cleared);
      using tersum::test::bits;
      ASSERT_TRUE(bits(bench.decompress(payload, part.size(), context)) ==
                  bits(tersum::test::decode(*compressor, payload, part.size(), context)));
      ASSERT_TRUE(bits_of_sums(bench.decompress_add(payload, before, 0.7f, context)) ==
                  bits_of_sums(sum));
      ASSERT_TRUE(bits(bench.clear_sent(payload, before, context)) == bits(cleared));
      ASSERT_TRUE(bench.status().is_ok());
      begin = end;
    } while (begin < count);
    const bool keeps = draw.below(4) > 0;
    keeps ? bench.state()->commit(bench.stream()) : bench.state()->rollback();
    if (!state) continue;
    keeps ? state->commit() : state->rollback();
    ASSERT_TRUE(bench.state()->save(bench.stream()) == state->save()) << "step " << step;
  }
}

TEST_F(Random, TwinsDoAsTheCpu) {
  for (std::uint64_t number = 0; number < 150; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    Draw draw(number);
    compare_with_cpu(draw);
    if (HasFatalFailure()) return;
  }
}

/// Up to five ranks share a GPU here: all their blocks must fit on it together.
PeerSettings draw_settings(Draw& draw) {
  PeerSettings settings;
  settings.timeout = std::chrono::milliseconds(8'000);
  settings.cell_blocks = 1 + static_cast<int>(draw.below(16));
  settings.push_blocks = 1 + static_cast<int>(draw.below(16));
  settings.push_lead = 1 + static_cast<int>(draw.below(4));
  settings.slot_bytes = 4096 * (1 + draw.below(8));
  settings.slots = 1 + static_cast<int>(draw.below(6));
  settings.staging_bytes = (1 + draw.below(4)) << 20;
  settings.head_bytes = draw.below(4) << 17;
  settings.staging_blocks = 1 + static_cast<int>(draw.below(16));
  return settings;
}

CollectiveCase draw_collective(Draw& draw, std::size_t ranks) {
  CollectiveCase test;
  test.kind = static_cast<Collective>(draw.below(kCollectiveCount));
  test.dtype = static_cast<DType>(draw.below(kDTypeCount));
  do {
    test.op = static_cast<ReduceOp>(draw.below(kReduceOpCount));
  } while (test.dtype == DType::Bool && test.op == ReduceOp::Average);
  if (is_floating(test.dtype) && draw.one_in(2)) test.scales = {0.3, 1.7};
  const std::size_t most = draw.one_in(6) ? 6 << 20 : 400'000;
  test.count = draw.size_up_to(most / ranks / element_bytes(test.dtype));
  test.root = static_cast<int>(draw.below(ranks));
  test.shift = draw.below(17);
  test.in_place = draw.one_in(2) && test.kind != Collective::Shift;
  const bool two_shots = test.kind == Collective::AllReduce;
  test.algorithm = draw.of({Algorithm::Auto, Algorithm::Push,
                            two_shots ? Algorithm::PushTwoShot : Algorithm::Push,
                            ranks == 2 ? Algorithm::CopyEngines : Algorithm::Auto});
  if (test.count * element_bytes(test.dtype) <= 64 * 1024 && draw.one_in(2))
    test.algorithm = draw.of({Algorithm::Packets, Algorithm::Lines,
                              two_shots ? Algorithm::PacketsTwoShot : Algorithm::Packets,
                              two_shots ? Algorithm::LinesTwoShot : Algorithm::Lines});
  return test;
}

/// body(rank, draw) on all ranks, with one draw for all.
template <class Rank, class Make>
void in_ranks(std::uint64_t number, const Make& make,
              const std::function<void(Rank&, Draw&)>& body) {
  const int size = 1 + static_cast<int>(Draw(number).below(5));
  run_threads(size, [&](const RankRole& role) {
    Draw draw(number + 7919);
    Rank rank = make(role, draw_settings(draw));
    body(rank, draw);
    rank.stream().synchronize();
    const std::byte nothing{};
    role.all_gather(std::span(&nothing, 1));  // nobody's kernels use anybody's memory any more
  });
}

TEST_F(Random, CollectivesDoAsTheHost) {
  const int gpus = static_cast<int>(devices().size());
  for (std::uint64_t number = 0; number < 6; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    in_ranks<CollectiveRank>(
        number,
        [&](const RankRole& role, const PeerSettings& settings) {
          return CollectiveRank(role, gpus, settings);
        },
        [](CollectiveRank& rank, Draw& draw) {
          for (int i = 0; i < 20; ++i) {
            std::vector<CollectiveCase> calls(1 + draw.below(6));
            for (CollectiveCase& call : calls)
              call = draw_collective(draw, static_cast<std::size_t>(rank.size()));
            rank.check_all(calls, draw.seed());
          }
        });
  }
}

TEST_F(Random, CompressedAllReducesDoAsTheHost) {
  const int gpus = static_cast<int>(devices().size());
  CompressedSettings compressed;
  compressed.blocks = 40;
  for (std::uint64_t number = 0; number < 6; ++number) {
    SCOPED_TRACE("case " + std::to_string(number));
    in_ranks<CompressedRank>(
        number,
        [&](const RankRole& role, const PeerSettings& settings) {
          return CompressedRank(role, gpus, settings, compressed);
        },
        [](CompressedRank& rank, Draw& draw) {
          for (int i = 0; i < 12; ++i) {
            CompressedCase test{draw_spec(draw)};
            const std::size_t block = make_compressor(test.spec)->traits().block_count;
            test.count = draw.count_up_to(draw.one_in(6) ? 1'000'000 : 60'000, block);
            test.input = input_kinds()[draw.below(input_kinds().size())];
            test.op = draw.of({ReduceOp::Sum, ReduceOp::Average});
            test.shift = draw.below(4);
            test.in_place = draw.one_in(2);
            test.steps = 1 + static_cast<int>(draw.below(3));
            rank.check(test);
          }
        });
  }
}

}  // namespace
}  // namespace tersum::gpu::test
