// The checker must find what is wrong: collectives done right in one process pass, and every way to
// do them wrong is counted.
#include "perf/check.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace tersum::perf {
namespace {

constexpr std::size_t kElements = 24;
constexpr std::uint64_t kRound = 5;

Problem problem_of(std::string_view collective, int rank, DType dtype = DType::Float32,
                   ReduceOp op = ReduceOp::Sum) {
  return {&find_collective(collective), dtype, op, 0, rank, 3};
}

/// Writes what the collective should give: the inputs of all ranks are known.
Call right_call(const Problem& problem) {
  return [problem](const Shape& shape, const void*, void* output) {
    const Values values(problem.dtype, problem.op, problem.ranks, kRound);
    const std::size_t element = element_bytes(problem.dtype);
    for (const Segment& segment : shape.result) {
      auto* at = static_cast<std::byte*>(output) + segment.at * element;
      if (segment.source != kAllRanks) {
        values.fill(at, segment.source, segment.source_at, segment.count);
        continue;
      }
      for (std::size_t i = 0; i < segment.count; ++i) {  // Float32 and Sum only
        float sum = 0;
        for (int rank = 0; rank < problem.ranks; ++rank) {
          sum += static_cast<float>(values.number(rank, segment.source_at + i));
        }
        std::memcpy(at + i * element, &sum, element);
      }
    }
  };
}

/// What the checker counts when `spoil` comes after the right call.
using Spoil = std::function<void(const Shape&, std::byte* input, std::byte* output)>;
std::int64_t counted(const Problem& problem, bool in_place, const Spoil& spoil = {},
                     bool shifted = false) {
  const Shape shape = make_shape(problem, kElements);
  const std::size_t bytes = kElements * 3 * element_bytes(problem.dtype);
  BufferRing inputs(bytes), outputs(bytes);
  inputs.set_size(shape.input_count * element_bytes(problem.dtype));
  outputs.set_size(std::max(shape.output_count, shape.whole_count) * element_bytes(problem.dtype));
  const Call right = right_call(problem);
  const Call call = [&](const Shape& s, const void* input, void* output) {
    right(s, input, output);
    if (spoil) {
      spoil(s, static_cast<std::byte*>(const_cast<void*>(input)), static_cast<std::byte*>(output));
    }
  };
  return check_call(problem, shape, {in_place, shifted}, kRound, inputs, outputs, call);
}

TEST(Checker, AcceptsEveryCollectiveDoneRight) {
  for (const char* name : {"allreduce", "reducescatter", "allgather", "allgatherv", "broadcast",
                           "reduce", "alltoall", "alltoallv", "sendrecv"}) {
    for (int rank = 0; rank < 3; ++rank) {
      const Problem problem = problem_of(name, rank);
      for (const bool shifted : {false, true}) {
        if (problem.traits->in_place) {
          EXPECT_EQ(counted(problem, true, {}, shifted), 0) << name;
        }
        if (problem.traits->out_of_place) {
          EXPECT_EQ(counted(problem, false, {}, shifted), 0) << name;
        }
      }
    }
  }
}

TEST(Checker, CountsWrongElements) {
  for (const bool in_place : {false, true}) {
    EXPECT_EQ(counted(problem_of("allreduce", 1), in_place,
                      [](const Shape&, std::byte*, std::byte* output) {
                        output[0] ^= std::byte{1};  // the last bit of one element
                        output[4 * (kElements - 1)] ^= std::byte{1};
                      }),
              2);
  }
}

TEST(Checker, CountsOutputThatWasNeverWritten) {
  const Problem problem = problem_of("allgather", 1);
  EXPECT_EQ(counted(problem, false,
                    [](const Shape& shape, std::byte*, std::byte* output) {
                      std::memset(output + 4 * shape.count, static_cast<int>(kPoison),
                                  4 * shape.count);
                    }),
            static_cast<std::int64_t>(kElements / 3));
}

TEST(Checker, CountsInputThatWasChanged) {
  EXPECT_EQ(counted(problem_of("reducescatter", 2), false,
                    [](const Shape&, std::byte* input, std::byte*) { input[5] ^= std::byte{64}; }),
            1);
  // In place, the parts that are not the result are still input.
  EXPECT_EQ(counted(problem_of("reducescatter", 2), true,
                    [](const Shape&, std::byte* input, std::byte*) { input[5] ^= std::byte{64}; }),
            1);
}

TEST(Checker, CountsBytesWrittenBesideTheBuffers) {
  for (const bool in_place : {false, true}) {
    EXPECT_EQ(counted(problem_of("allreduce", 0), in_place,
                      [](const Shape& shape, std::byte*, std::byte* output) {
                        output[-1] = std::byte{0};
                        output[4 * shape.count] = std::byte{0};
                      }),
              2);
  }
}

TEST(Checker, CountsOutputOfRanksThatHaveNone) {
  const Problem problem = problem_of("reduce", 1);  // the root is 0
  EXPECT_EQ(counted(problem, false,
                    [](const Shape&, std::byte*, std::byte* output) { output[3] = std::byte{0}; }),
            1);
}

TEST(Checker, CountsPartsOfTheWrongRank) {
  const Problem problem = problem_of("alltoall", 0);
  EXPECT_GT(counted(problem, false,
                    [](const Shape& shape, std::byte*, std::byte* output) {
                      const std::size_t bytes = 4 * shape.count;
                      std::memcpy(output, output + bytes, bytes);
                    }),
            0);
}

TEST(Checker, CountsDataOfAnEarlierRound) {
  const Problem problem = problem_of("broadcast", 1);
  EXPECT_GT(counted(problem, true,
                    [&](const Shape& shape, std::byte*, std::byte* output) {
                      const Values old(problem.dtype, problem.op, 3, kRound - 1);
                      old.fill(output, 0, 0, shape.count);
                    }),
            0);
}

TEST(Shapes, MatchBetweenRanks) {
  for (int from = 0; from < 3; ++from) {
    const Shape sender = make_shape(problem_of("alltoallv", from), 100);
    for (int to = 0; to < 3; ++to) {
      const Shape receiver = make_shape(problem_of("alltoallv", to), 100);
      EXPECT_EQ(sender.send_counts[static_cast<std::size_t>(to)],
                receiver.receive_counts[static_cast<std::size_t>(from)]);
    }
    EXPECT_LE(sender.size_bytes, 400u);
  }
}

TEST(Shapes, AreUnevenForVariableCounts) {
  const Shape gather = make_shape(problem_of("allgatherv", 0), 100);
  EXPECT_EQ(gather.receive_counts, (std::vector<std::size_t>{0, 33, 67}));
  EXPECT_EQ(gather.size_bytes, 400u);
  const Shape exchange = make_shape(problem_of("alltoallv", 1), 100);
  EXPECT_NE(exchange.send_counts, exchange.receive_counts);
}

TEST(Shapes, ReportTheWholeBufferAsNcclTestsDo) {
  for (const char* name : {"reducescatter", "allgather", "alltoall"}) {
    const Shape shape = make_shape(problem_of(name, 0), 100);
    EXPECT_EQ(shape.count, 33u) << name;
    EXPECT_EQ(shape.size_bytes, 4u * 99) << name;
  }
}

}  // namespace
}  // namespace tersum::perf
