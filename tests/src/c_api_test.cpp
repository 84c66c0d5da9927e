// The C interface. What a C program sees is in c_api_program.c; here are the things that need more
// ranks or threads.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "src/c_api.hpp"
#include "src/session.hpp"

extern "C" {
int c_settings(void);
int c_collectives(void);
int c_work(void);
int c_exchange(void);
int c_exchange_checkpoint(void);
int c_null_arguments(void);
int c_wrong_arguments(void);
int c_option_sizes(void);
}

namespace tersum {
namespace {

#define EXPECT_ALL_LINES_RIGHT(call) \
  EXPECT_EQ(call, 0) << "line of c_api_program.c; " << tersum_last_error()

TEST(CInterface, TakesSettingsByTheirVariables) {
  EXPECT_ALL_LINES_RIGHT(c_settings());
}
TEST(CInterface, MakesEveryCollective) {
  EXPECT_ALL_LINES_RIGHT(c_collectives());
}
TEST(CInterface, GivesWorkThatCanBeAwaited) {
  EXPECT_ALL_LINES_RIGHT(c_work());
}
TEST(CInterface, ExchangesGradients) {
  EXPECT_ALL_LINES_RIGHT(c_exchange());
}
TEST(CInterface, RollsBackSavesAndLoadsAnExchange) {
  EXPECT_ALL_LINES_RIGHT(c_exchange_checkpoint());
}
TEST(CInterface, RefusesNullArguments) {
  EXPECT_ALL_LINES_RIGHT(c_null_arguments());
}
TEST(CInterface, RefusesWrongArgumentsAndSaysWhich) {
  EXPECT_ALL_LINES_RIGHT(c_wrong_arguments());
}
TEST(CInterface, AcceptsOptionsOfOtherVersions) {
  EXPECT_ALL_LINES_RIGHT(c_option_sizes());
}

/// Runs `function(rank, communicator)` on `size` ranks, each in a thread of its own.
template <class Function>
void on_ranks(int size, Function function) {
  auto world = make_local_world(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto* comm = new tersum_comm{world[static_cast<std::size_t>(rank)]};
      function(rank, comm);
      EXPECT_EQ(tersum_comm_destroy(comm), TERSUM_OK);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(CInterface, AllReducesOverRanks) {
  on_ranks(3, [](int rank, tersum_comm_t* comm) {
    std::array<double, 2> x = {1.0 + rank, -1.0};
    tersum_work_t* work = nullptr;
    ASSERT_EQ(tersum_all_reduce(comm, x.data(), x.data(), 2, TERSUM_FLOAT64, TERSUM_AVERAGE,
                                nullptr, &work),
              TERSUM_OK);
    EXPECT_EQ(tersum_work_wait(work, -1, nullptr), TERSUM_OK) << tersum_last_error();
    EXPECT_EQ(tersum_work_free(work), TERSUM_OK);
    EXPECT_EQ(x[0], 2.0);
    EXPECT_EQ(x[1], -1.0);
    std::uint64_t sent = 0;
    EXPECT_EQ(tersum_comm_sent_bytes(comm, &sent), TERSUM_OK);
    EXPECT_GT(sent, 0u);
  });
}

TEST(CInterface, MovesUnevenPartsBetweenRanks) {
  on_ranks(2, [](int rank, tersum_comm_t* comm) {
    // Rank 0 keeps 1 and sends 2; rank 1 sends 3 and keeps 1.
    const std::vector<std::vector<std::size_t>> counts = {{1, 2}, {3, 1}};
    const auto me = static_cast<std::size_t>(rank);
    const std::vector<std::size_t> receive = {counts[0][me], counts[1][me]};
    std::vector<std::int32_t> input;
    for (int i = 0; i < 3 + rank; ++i) input.push_back(10 * (rank + 1) + i);
    std::vector<std::int32_t> output(receive[0] + receive[1]);
    EXPECT_EQ(tersum_all_to_all_v(comm, input.data(), counts[me].data(), output.data(),
                                  receive.data(), TERSUM_INT32, nullptr, nullptr),
              TERSUM_OK)
        << tersum_last_error();
    const std::vector<std::int32_t> expected = rank == 0 ? std::vector<std::int32_t>{10, 20, 21, 22}
                                                         : std::vector<std::int32_t>{11, 12, 23};
    EXPECT_EQ(output, expected);

    std::int32_t ball = rank == 0 ? 77 : 0;
    const int code = rank == 0 ? tersum_send(comm, &ball, 1, TERSUM_INT32, 1, nullptr, nullptr)
                               : tersum_receive(comm, &ball, 1, TERSUM_INT32, 0, nullptr, nullptr);
    EXPECT_EQ(code, TERSUM_OK) << tersum_last_error();
    EXPECT_EQ(ball, 77);
  });
}

TEST(CInterface, TellsEachThreadItsOwnError) {
  on_ranks(2, [](int rank, tersum_comm_t* comm) {
    EXPECT_STREQ(tersum_last_error(), "");
    float x = 1;
    const int code = tersum_broadcast(comm, &x, 1, TERSUM_FLOAT32, 5 + rank, nullptr, nullptr);
    EXPECT_EQ(code, TERSUM_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tersum_last_error()).find("root " + std::to_string(5 + rank)),
              std::string::npos)
        << tersum_last_error();
  });
}

TEST(CInterface, ReportsTheOutcomeOfFailedWork) {
  on_ranks(2, [](int rank, tersum_comm_t* comm) {
    float x = 3;
    tersum_work_t* work = nullptr;
    const std::size_t count = rank == 0 ? 1 : 0;  // they disagree
    ASSERT_EQ(tersum_all_reduce(comm, &x, &x, count, TERSUM_FLOAT32, TERSUM_SUM, nullptr, &work),
              TERSUM_OK);
    EXPECT_EQ(tersum_work_wait(work, -1, nullptr), TERSUM_MISMATCH) << tersum_last_error();
    int done = 0;
    EXPECT_EQ(tersum_work_wait(work, 0, &done), TERSUM_MISMATCH);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(tersum_work_status(work), TERSUM_MISMATCH);
    EXPECT_NE(std::string(tersum_last_error()).find("Mismatch"), std::string::npos);
    tersum_stage_t stage = TERSUM_STAGE_PLANNED;
    EXPECT_EQ(tersum_work_stage(work, &stage), TERSUM_OK);
    EXPECT_EQ(stage, TERSUM_STAGE_FAILED);
    EXPECT_EQ(tersum_work_free(work), TERSUM_OK);
    EXPECT_EQ(x, 3);
    EXPECT_EQ(tersum_barrier(comm, nullptr, nullptr), TERSUM_OK) << tersum_last_error();
  });
}

TEST(CInterface, LeavesWorkPendingWhenATimedWaitEnds) {
  on_ranks(2, [](int rank, tersum_comm_t* comm) {
    // Rank 1 enters the second barrier only when rank 0 has sent it a word.
    tersum_work_t* work = nullptr;
    std::int32_t word = 1;
    int done = 1;
    if (rank == 0) {
      ASSERT_EQ(tersum_barrier(comm, nullptr, &work), TERSUM_OK);
      EXPECT_EQ(tersum_work_wait(work, 1, &done), TERSUM_OK);
      EXPECT_EQ(done, 0);
      EXPECT_EQ(tersum_work_status(work), TERSUM_OK);
      EXPECT_EQ(tersum_send(comm, &word, 1, TERSUM_INT32, 1, nullptr, nullptr), TERSUM_OK);
    } else {
      EXPECT_EQ(tersum_receive(comm, &word, 1, TERSUM_INT32, 0, nullptr, nullptr), TERSUM_OK);
      ASSERT_EQ(tersum_barrier(comm, nullptr, &work), TERSUM_OK);
    }
    EXPECT_EQ(tersum_work_wait(work, -1, &done), TERSUM_OK) << tersum_last_error();
    EXPECT_EQ(done, 1);
    EXPECT_EQ(tersum_work_free(work), TERSUM_OK);
  });
}

TEST(CInterface, AWaitForAGradientTellsThatItIsPendingWhenOthersNeverCome) {
  Config config;
  config.timeout = std::chrono::milliseconds(100);
  auto* comm = new tersum_comm{make_local_world(std::vector<Config>{config})[0]};
  std::array<tersum_gradient_t, 2> gradients{};
  for (tersum_gradient_t& gradient : gradients) {
    gradient.count = 1;
    gradient.dtype = TERSUM_FLOAT32;
  }
  gradients[0].key = "first";
  gradients[1].key = "second";  // both in one bucket
  tersum_exchange_t* exchange = nullptr;
  ASSERT_EQ(tersum_exchange_create(comm, gradients.data(), 2, nullptr, &exchange), TERSUM_OK)
      << tersum_last_error();
  float first = 1, second = 2;
  tersum_work_t* work = nullptr;
  ASSERT_EQ(tersum_exchange_submit(exchange, 1, &second, nullptr, &work), TERSUM_OK)
      << tersum_last_error();
  int done = 1;
  EXPECT_EQ(tersum_work_wait(work, -1, &done), TERSUM_TIMEOUT);
  EXPECT_EQ(done, 0);
  EXPECT_NE(std::string(tersum_last_error()).find("first"), std::string::npos)
      << tersum_last_error();
  ASSERT_EQ(tersum_exchange_submit(exchange, 0, &first, nullptr, nullptr), TERSUM_OK);
  EXPECT_EQ(tersum_work_wait(work, -1, &done), TERSUM_OK) << tersum_last_error();
  EXPECT_EQ(done, 1);
  EXPECT_EQ(tersum_work_free(work), TERSUM_OK);
  EXPECT_EQ(tersum_exchange_destroy(exchange), TERSUM_OK);
  EXPECT_EQ(tersum_comm_destroy(comm), TERSUM_OK);
}

TEST(CInterface, SplitsIntoGroups) {
  on_ranks(3, [](int rank, tersum_comm_t* comm) {
    tersum_comm_t* group = nullptr;
    ASSERT_EQ(tersum_comm_split(comm, rank % 2, -rank, &group), TERSUM_OK) << tersum_last_error();
    int size = 0, mine = -1, world = -1;
    EXPECT_EQ(tersum_comm_size(group, &size), TERSUM_OK);
    EXPECT_EQ(tersum_comm_rank(group, &mine), TERSUM_OK);
    EXPECT_EQ(tersum_comm_world_rank(group, 0, &world), TERSUM_OK);
    EXPECT_EQ(size, rank == 1 ? 1 : 2);
    EXPECT_EQ(mine, rank == 0 ? 1 : 0);
    EXPECT_EQ(world, rank == 1 ? 1 : 2);
    EXPECT_EQ(tersum_comm_destroy(group), TERSUM_OK);
  });
}

}  // namespace
}  // namespace tersum
