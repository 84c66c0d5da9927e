// A rank dies or stops in the middle of exchanging gradients in device memory: the others learn of
// it, and their GPUs go on working. Ranks are processes.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <tuple>

#include "src/device_gradients_support.hpp"
#include "src/device_job.hpp"

namespace tersum::test {
namespace {

/// Trains until the others are gone. Rank 1 sends itself `signal` in its third step.
void train_until_loss(int signal) {
  Communicator communicator = Communicator::connect();
  const int rank = communicator.rank();  // in larger jobs neighbours are on different hosts
  const int device = communicator.size() == 2 ? rank : rank / 2;
  gpu::check(cudaSetDevice(device % gpus()), "cudaSetDevice");
  const gpu::Stream stream;
  const Model model = odd_model();
  const DeviceTensors tensors(model);
  GradientExchange exchange(communicator, on_device(model), compressing("qint:bits=4+ef"));
  const auto order = backward_order(model);
  const auto step = [&](std::uint64_t number) {
    tensors.write(gradients_of(model, rank, number), stream);
    for (std::size_t i = 0; i < order.size(); ++i) {
      exchange.submit(order[i], tensors[order[i]], stream.view());
      if (number == 2 && rank == 1 && i == order.size() / 2) ::raise(signal);
    }
    exchange.wait_all();
    exchange.commit();
  };
  const auto begin = std::chrono::steady_clock::now();
  const Status loss = thrown_by([&] {
    for (std::uint64_t number = 0;; ++number) step(number);
  });
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(loss.code(), Code::PeerLost) << loss.to_string();
  EXPECT_EQ(loss.rank(), 1);
  std::printf("rank %d: %s after %.3f s\n", rank, loss.to_string().c_str(), taken.count());
  const Tensors inputs = gradients_of(model, 7, 0);
  tensors.write(inputs, stream);
  EXPECT_EQ(tensors.read(stream), inputs);
}

TEST(DeviceRank, Runs) {
  if (role().empty()) GTEST_SKIP() << "a rank of the tests below";
  train_until_loss(role() == "killed" ? SIGKILL : SIGSTOP);
}

/// Hosts, and what happens to rank 1.
class DeviceLoss : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

INSTANTIATE_TEST_SUITE_P(Hosts, DeviceLoss,
                         testing::Combine(testing::Values("aa", "ab", "abab"),
                                          testing::Values("killed", "stopped")),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param);
                         });

TEST_P(DeviceLoss, IsNamedAndTheOthersGoOn) {
  const auto& [hosts, what] = GetParam();
  if (gpus() < (hosts == "ab" ? 1 : 2)) GTEST_SKIP() << "too few GPUs here";
  Job job(hosts, what);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    if (rank != 1) {
      EXPECT_EQ(job.status_of(rank), 0) << "rank " << rank;
    }
}

}  // namespace
}  // namespace tersum::test
