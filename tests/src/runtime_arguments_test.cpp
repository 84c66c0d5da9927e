// Calls that are wrong in themselves are refused at once, with a message that names the thing.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "src/support.hpp"

namespace tersum::test {
namespace {

class Arguments : public ::testing::Test {
 protected:
  /// What `call` throws must be InvalidArgument and have these words. Nothing may have started.
  template <class Function>
  void refused(const Function& call, const std::vector<std::string>& words) {
    const Status status = thrown_by(call);
    EXPECT_EQ(status.code(), Code::InvalidArgument) << status.to_string();
    for (const std::string& word : words)
      EXPECT_NE(status.message().find(word), std::string::npos)
          << "'" << word << "' is missing in: " << status.message();
  }
  static CallOptions scaled(double pre, double post) {
    CallOptions options;
    options.pre_scale = pre;
    options.post_scale = post;
    return options;
  }

  void TearDown() override {  // after all refusals the ranks still agree
    each_rank(2, [&](int rank) {
      float value = 1;
      Communicator& communicator = world[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(succeeds(communicator.all_reduce(&value, &value, 1, DType::Float32)));
      EXPECT_EQ(value, 2);
    });
  }

  World world = make_world(2);
  Communicator& c = world[0];
  float in[8] = {}, out[8] = {};
  const DType fp32 = DType::Float32;
  const DType unknown = static_cast<DType>(77);
};

TEST_F(Arguments, ARankOutsideTheGroup) {
  for (int bad : {-1, 2, 1000}) {
    const std::string text = std::to_string(bad);
    refused([&] { c.broadcast(out, 1, fp32, bad); }, {"broadcast", "root " + text, "0..1"});
    refused([&] { c.reduce(in, out, 1, fp32, ReduceOp::Sum, bad); }, {"reduce", "root " + text});
    refused([&] { c.send(in, 1, fp32, bad); }, {"peer " + text, "0..1"});
    refused([&] { c.receive(out, 1, fp32, bad); }, {"peer " + text, "0..1"});
    refused([&] { (void)c.world_rank(bad); }, {"rank " + text, "0..1"});
  }
  refused([&] { c.send(in, 1, fp32, 0); }, {"itself"});
  refused([&] { c.receive(out, 1, fp32, 0); }, {"itself"});
}

TEST_F(Arguments, ANullPointerWithElements) {
  const std::vector<std::size_t> counts{1, 1};
  refused([&] { c.all_reduce(nullptr, out, 3, fp32); }, {"all_reduce", "input", "null", "3"});
  refused([&] { c.all_reduce(in, nullptr, 3, fp32); }, {"all_reduce", "output", "null"});
  refused([&] { c.reduce_scatter(nullptr, out, 1, fp32); }, {"reduce_scatter", "input"});
  refused([&] { c.reduce_scatter(in, nullptr, 1, fp32); }, {"reduce_scatter", "output"});
  refused([&] { c.all_gather(nullptr, out, 1, fp32); }, {"all_gather", "input"});
  refused([&] { c.all_gather(in, nullptr, 1, fp32); }, {"all_gather", "output"});
  refused([&] { c.all_gather_v(nullptr, out, counts, fp32); }, {"all_gather_v", "input"});
  refused([&] { c.all_gather_v(in, nullptr, counts, fp32); }, {"all_gather_v", "output"});
  refused([&] { c.broadcast(nullptr, 1, fp32, 0); }, {"broadcast", "data"});
  refused([&] { c.reduce(nullptr, out, 1, fp32, ReduceOp::Sum, 0); }, {"reduce", "input"});
  refused([&] { c.reduce(in, nullptr, 1, fp32, ReduceOp::Sum, 0); }, {"reduce", "output"});
  refused([&] { c.all_to_all(nullptr, out, 1, fp32); }, {"all_to_all", "input"});
  refused([&] { c.all_to_all(in, nullptr, 1, fp32); }, {"all_to_all", "output"});
  refused([&] { c.all_to_all_v(nullptr, counts, out, counts, fp32); }, {"all_to_all_v", "input"});
  refused([&] { c.all_to_all_v(in, counts, nullptr, counts, fp32); }, {"all_to_all_v", "output"});
  refused([&] { c.send(nullptr, 1, fp32, 1); }, {"send/receive", "data"});
  refused([&] { c.receive(nullptr, 1, fp32, 1); }, {"send/receive", "data"});
}

TEST_F(Arguments, APointerThatIsNotAligned) {
  auto* bytes = reinterpret_cast<std::byte*>(in);
  refused([&] { c.all_reduce(bytes + 1, out, 1, fp32); }, {"input", "aligned", "fp32"});
  refused([&] { c.all_reduce(in, bytes + 2, 1, fp32); }, {"output", "aligned"});
  refused([&] { c.broadcast(bytes + 1, 1, DType::Float16, 0); }, {"data", "aligned", "fp16"});
}

TEST_F(Arguments, AnUnknownDTypeOrOperator) {
  const std::vector<std::size_t> counts{1, 1};
  refused([&] { c.all_reduce(in, out, 1, unknown); }, {"all_reduce", "dtype 77"});
  refused([&] { c.reduce_scatter(in, out, 1, unknown); }, {"dtype 77"});
  refused([&] { c.all_gather(in, out, 1, unknown); }, {"dtype 77"});
  refused([&] { c.all_gather_v(in, out, counts, unknown); }, {"dtype 77"});
  refused([&] { c.broadcast(in, 1, unknown, 0); }, {"dtype 77"});
  refused([&] { c.reduce(in, out, 1, unknown, ReduceOp::Sum, 0); }, {"dtype 77"});
  refused([&] { c.all_to_all(in, out, 1, unknown); }, {"dtype 77"});
  refused([&] { c.all_to_all_v(in, counts, out, counts, unknown); }, {"dtype 77"});
  refused([&] { c.send(in, 1, unknown, 1); }, {"dtype 77"});
  refused([&] { c.receive(in, 1, unknown, 1); }, {"dtype 77"});
  refused([&] { c.all_reduce(in, out, 1, fp32, static_cast<ReduceOp>(9)); }, {"operator 9"});
}

TEST_F(Arguments, AnAverageOfBool) {
  refused([&] { c.all_reduce(in, out, 1, DType::Bool, ReduceOp::Average); },
          {"average of bool", "max"});
  refused([&] { c.reduce_scatter(in, out, 1, DType::Bool, ReduceOp::Average); },
          {"average of bool"});
  refused([&] { c.reduce(in, out, 1, DType::Bool, ReduceOp::Average, 0); }, {"average of bool"});
}

TEST_F(Arguments, ScalesWhereTheyHaveNoMeaning) {
  refused([&] { c.all_reduce(in, out, 1, DType::Int32, ReduceOp::Sum, scaled(2, 1)); },
          {"scales", "int32"});
  refused([&] { c.all_reduce(in, out, 1, DType::Int32, ReduceOp::Sum, scaled(1, 2)); },
          {"scales", "int32"});
  refused([&] { c.reduce_scatter(in, out, 1, DType::Bool, ReduceOp::Sum, scaled(2, 1)); },
          {"scales", "bool"});
  refused([&] { c.all_gather(in, out, 1, fp32, scaled(2, 1)); }, {"all_gather", "scales"});
  refused([&] { c.broadcast(in, 1, fp32, 0, scaled(1, 2)); }, {"broadcast", "scales"});
  refused([&] { c.barrier(scaled(2, 1)); }, {"barrier", "scales"});
  refused([&] { c.send(in, 1, fp32, 1, scaled(2, 1)); }, {"scales"});
  for (double bad : {std::numeric_limits<double>::infinity(), std::nan("")})
    refused([&] { c.all_reduce(in, out, 1, fp32, ReduceOp::Sum, scaled(1, bad)); }, {"finite"});
}

TEST_F(Arguments, AWrongNumberOfCounts) {
  const std::vector<std::size_t> one{1}, two{1, 1}, three{1, 1, 1}, uneven{2, 1};
  refused([&] { c.all_gather_v(in, out, one, fp32); }, {"counts", "1", "2 ranks"});
  refused([&] { c.all_gather_v(in, out, three, fp32); }, {"counts", "3", "2 ranks"});
  refused([&] { c.all_to_all_v(in, one, out, two, fp32); }, {"send_counts", "2 ranks"});
  refused([&] { c.all_to_all_v(in, two, out, three, fp32); }, {"receive_counts", "2 ranks"});
  refused([&] { c.all_to_all_v(in, uneven, out, two, fp32); }, {"itself", "2", "1"});
}

TEST_F(Arguments, ACountBeyondAnyMemory) {
  const std::size_t huge = std::numeric_limits<std::size_t>::max() / 4;
  refused([&] { c.all_reduce(in, out, huge, fp32); }, {"count", std::to_string(huge)});
  refused([&] { c.all_gather(in, out, huge, fp32); }, {"count"});
}

TEST_F(Arguments, ANegativeTimeoutAndAStream) {
  CallOptions options;
  options.timeout = std::chrono::milliseconds(-1);
  refused([&] { c.barrier(options); }, {"barrier", "timeout", "negative"});
  options.timeout = {};
  options.stream.handle = &options;
  EXPECT_EQ(thrown_by([&] { c.all_reduce(in, out, 1, fp32, ReduceOp::Sum, options); }).code(),
            Code::Unsupported);
  const std::vector<std::size_t> ones{1, 1};
  EXPECT_EQ(thrown_by([&] { c.all_to_all_v(in, ones, out, ones, fp32, options); }).code(),
            Code::Unsupported);
}

TEST_F(Arguments, NullIsFineForNothing) {
  each_rank(2, [&](int rank) {
    Communicator& mine = world[static_cast<std::size_t>(rank)];
    const std::vector<std::size_t> none{0, 0};
    EXPECT_TRUE(succeeds(mine.all_reduce(nullptr, nullptr, 0, fp32)));
    EXPECT_TRUE(succeeds(mine.reduce_scatter(nullptr, nullptr, 0, fp32)));
    EXPECT_TRUE(succeeds(mine.all_gather(nullptr, nullptr, 0, fp32)));
    EXPECT_TRUE(succeeds(mine.all_gather_v(nullptr, nullptr, none, fp32)));
    EXPECT_TRUE(succeeds(mine.broadcast(nullptr, 0, fp32, 0)));
    EXPECT_TRUE(succeeds(mine.reduce(nullptr, nullptr, 0, fp32, ReduceOp::Sum, 1)));
    EXPECT_TRUE(succeeds(mine.all_to_all(nullptr, nullptr, 0, fp32)));
    EXPECT_TRUE(succeeds(mine.all_to_all_v(nullptr, none, nullptr, none, fp32)));
  });
}

TEST_F(Arguments, AStreamIsFineForNothing) {
  each_rank(2, [&](int rank) {
    Communicator& mine = world[static_cast<std::size_t>(rank)];
    const std::vector<std::size_t> none{0, 0};
    CallOptions options;
    options.stream.handle = &options;
    const auto sum = ReduceOp::Sum;
    EXPECT_TRUE(succeeds(mine.all_reduce(nullptr, nullptr, 0, fp32, sum, options)));
    EXPECT_TRUE(succeeds(mine.reduce_scatter(nullptr, nullptr, 0, fp32, sum, options)));
    EXPECT_TRUE(succeeds(mine.all_gather(nullptr, nullptr, 0, fp32, options)));
    EXPECT_TRUE(succeeds(mine.all_gather_v(nullptr, nullptr, none, fp32, options)));
    EXPECT_TRUE(succeeds(mine.broadcast(nullptr, 0, fp32, 0, options)));
    EXPECT_TRUE(succeeds(mine.reduce(nullptr, nullptr, 0, fp32, sum, 1, options)));
    EXPECT_TRUE(succeeds(mine.all_to_all(nullptr, nullptr, 0, fp32, options)));
    EXPECT_TRUE(succeeds(rank == 0 ? mine.send(nullptr, 0, fp32, 1, options)
                                   : mine.receive(nullptr, 0, fp32, 0, options)));
  });
}

TEST(EmptyCommunicator, RefusesEverything) {
  Communicator c;
  float x = 0;
  EXPECT_FALSE(c.valid());
  EXPECT_EQ(thrown_by([&] { (void)c.rank(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { (void)c.size(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { (void)c.status(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { c.barrier(); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { c.all_reduce(&x, &x, 1, DType::Float32); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { c.split(0); }).code(), Code::InvalidState);
  EXPECT_EQ(thrown_by([&] { c.abort("x"); }).code(), Code::InvalidState);
}

}  // namespace
}  // namespace tersum::test
