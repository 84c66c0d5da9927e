// The training loop: gradients leave as the backward pass makes them and are awaited where the next
// forward pass needs them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "mnist/dataset.hpp"
#include "mnist/network.hpp"
#include "mnist/optimizer.hpp"
#include "tersum/communicator.hpp"
#include "tersum/gradient_exchange.hpp"

namespace mnist {

struct TrainingOptions {
  int epochs = 8;
  std::size_t batch = 16;  ///< of each rank
  double learning_rate = 0.05;
  double momentum = 0.9;
  std::uint64_t seed = 1;
  tersum::ExchangeOptions exchange;
};

/// What an epoch showed; equal on all ranks.
struct EpochResult {
  double train_loss = 0.0;     ///< mean over the epoch's images, while it ran
  double test_accuracy = 0.0;  ///< fraction, after it
};

/// What the whole training cost. Means over ranks.
struct Cost {
  double sent_bytes_per_step = 0.0;
  double dense_bytes_per_step = 0.0;  ///< what dense fp32 all-reduce would have sent
  double exposed_ms_per_step = 0.0;   ///< the loop stood still inside the exchange
  double compute_ms_per_step = 0.0;   ///< the rest of the loop
  double samples_per_second = 0.0;    ///< of the whole job, while training
};

/// Trains one replica. Collective: all ranks do the same with equal options and data.
class Trainer {
 public:
  /// Makes the network, takes rank 0's parameters and registers the gradients. The data sets must
  /// outlive the trainer. Throws tersum::Error.
  Trainer(tersum::Communicator communicator, const TrainingOptions& options, const Dataset& train,
          const Dataset& test);
  /// Waits for the end of gradients that an error has left on their way: they point into the
  /// network. Abort the communicator first, or it takes until their deadline.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// One epoch and its evaluation. `on_step(done, steps)` follows each step. Throws tersum::Error,
  /// also when the loss is not finite any more.
  EpochResult run_epoch(const std::function<void(std::size_t, std::size_t)>& on_step);

  std::size_t parameters_count() const noexcept { return network_.parameters_count(); }
  std::uint64_t parameters_hash() const noexcept { return network_.parameters_hash(); }
  /// Compares the hashes of all ranks. Collective.
  bool replicas_identical();
  /// Collective.
  Cost cost();

 private:
  using Clock = std::chrono::steady_clock;

  double train_step(std::size_t step);
  void submit(std::size_t parameter);
  void receive_and_update(std::size_t parameter);
  void finish_step();
  double evaluate();
  double mean_over_ranks(double value);
  std::span<float> images(std::size_t batch) {
    return std::span(images_).first(batch * kImagePixels);
  }
  template <typename Call>
  void exposed(Call&& call);

  tersum::Communicator communicator_;
  const TrainingOptions options_;
  const Dataset& train_;
  const Dataset& test_;
  const std::size_t steps_per_epoch_;
  LearningRate rate_;
  Network network_;
  Sgd optimizer_;
  tersum::GradientExchange exchange_;
  std::vector<tersum::Work> in_flight_;  // one a parameter; not valid: its gradient is not away
  Network::Hook before_use_;
  Network::Hook after_gradient_;
  std::vector<std::uint32_t> order_;
  std::vector<float> images_;
  std::vector<std::uint8_t> labels_;
  std::size_t epoch_ = 0;   // complete ones
  std::size_t steps_ = 0;   // begun
  bool step_open_ = false;  // gradients were submitted and not committed
  Clock::duration exposed_{};
  Clock::duration training_{};
};

}  // namespace mnist
