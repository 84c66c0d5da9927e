#include "mnist/trainer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "tersum/error.hpp"

namespace mnist {
namespace {

using tersum::Code;
using tersum::DType;
using tersum::Error;
using tersum::ReduceOp;

std::vector<std::size_t> counts(Network& network) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < network.tensors(); ++i) {
    result.push_back(network.parameter(i).value.size());
  }
  return result;
}

// Replicas start alike anyway; the broadcast keeps them alike whatever rank 0 starts from.
tersum::Communicator& share_parameters(tersum::Communicator& communicator, Network& network) {
  for (std::size_t i = 0; i < network.tensors(); ++i) {
    std::vector<float>& value = network.parameter(i).value;
    communicator.broadcast(value.data(), value.size(), DType::Float32, 0).wait();
  }
  return communicator;
}

std::vector<tersum::Gradient> gradients(Network& network) {
  std::vector<tersum::Gradient> result;
  for (std::size_t i = 0; i < network.tensors(); ++i) {
    const Parameter& parameter = network.parameter(i);
    result.push_back({.key = parameter.key,
                      .count = parameter.gradient.size(),
                      .dtype = DType::Float32,
                      .position = static_cast<int>(i),
                      .compressor = std::nullopt});
  }
  return result;
}

std::size_t whole_steps(std::size_t images, std::size_t batch, int ranks) {
  const std::size_t global_batch = batch * static_cast<std::size_t>(ranks);
  if (images < global_batch) {
    throw Error(Code::InvalidArgument, std::to_string(images) +
                                           " training images do not fill one global batch of " +
                                           std::to_string(ranks) + " x " + std::to_string(batch) +
                                           "; raise --train or lower --batch");
  }
  return images / global_batch;
}

}  // namespace

Trainer::Trainer(tersum::Communicator communicator, const TrainingOptions& options,
                 const Dataset& train, const Dataset& test)
    : communicator_(std::move(communicator)),
      options_(options),
      train_(train),
      test_(test),
      steps_per_epoch_(whole_steps(train.size(), options.batch, communicator_.size())),
      rate_(options.learning_rate, steps_per_epoch_,
            steps_per_epoch_ * static_cast<std::size_t>(options.epochs)),
      network_(options.batch, options.seed),
      optimizer_(static_cast<float>(options.momentum), counts(network_)),
      exchange_(share_parameters(communicator_, network_), gradients(network_), options.exchange),
      in_flight_(network_.tensors()),
      before_use_([this](std::size_t parameter) { receive_and_update(parameter); }),
      after_gradient_([this](std::size_t parameter) { submit(parameter); }),
      images_(options.batch * kImagePixels),
      labels_(options.batch) {}

Trainer::~Trainer() {
  for (const tersum::Work& work : in_flight_) {
    try {
      if (work.valid()) work.wait();
    } catch (const std::exception&) {  // the caller has seen the first cause
    }
  }
}

// Runs a call into the exchange on the clock of exposed communication.
template <typename Call>
void Trainer::exposed(Call&& call) {
  const Clock::time_point begin = Clock::now();
  call();
  exposed_ += Clock::now() - begin;
}

void Trainer::submit(std::size_t parameter) {
  exposed([&] {
    in_flight_[parameter] =
        exchange_.submit(parameter, network_.parameter(parameter).gradient.data());
  });
}

// The other half of the previous step: this parameter's averaged gradient, just before its use.
void Trainer::receive_and_update(std::size_t parameter) {
  if (!step_open_) return;
  exposed([&] { exchange_.wait(parameter); });
  in_flight_[parameter] = {};
  Parameter& target = network_.parameter(parameter);
  optimizer_.apply(parameter, rate_.at(steps_ - 1), target.gradient, target.value);
}

void Trainer::finish_step() {
  if (!step_open_) return;
  exposed([&] { exchange_.commit(); });
  step_open_ = false;
}

double Trainer::train_step(std::size_t step) {
  const auto indices =
      shard(order_, step, options_.batch, communicator_.rank(), communicator_.size());
  copy_moved_batch(train_, indices, options_.seed, epoch_, images_, labels_);
  network_.forward(images_, before_use_);  // layer by layer, as gradients of the last step arrive
  finish_step();
  ++steps_;
  step_open_ = true;
  return network_.backward(images_, labels_, after_gradient_);
}

EpochResult Trainer::run_epoch(const std::function<void(std::size_t, std::size_t)>& on_step) {
  order_ = epoch_order(train_.size(), options_.seed, epoch_);
  double loss = 0.0;
  const Clock::time_point begin = Clock::now();
  for (std::size_t step = 0; step < steps_per_epoch_; ++step) {
    loss += train_step(step);
    on_step(step + 1, steps_per_epoch_);
  }
  for (std::size_t i = 0; i < network_.tensors(); ++i) receive_and_update(i);
  finish_step();
  training_ += Clock::now() - begin;
  ++epoch_;

  EpochResult result;
  result.train_loss = mean_over_ranks(loss / static_cast<double>(steps_per_epoch_));
  if (!std::isfinite(result.train_loss)) {
    throw Error(Code::InvalidState, "the loss is not finite after epoch " + std::to_string(epoch_) +
                                        ": training has diverged; lower --lr");
  }
  result.test_accuracy = evaluate();
  return result;
}

// Every rank looks at its part of the test images.
double Trainer::evaluate() {
  const std::size_t rank = static_cast<std::size_t>(communicator_.rank());
  const std::size_t size = static_cast<std::size_t>(communicator_.size());
  const std::size_t end = test_.size() * (rank + 1) / size;
  std::vector<std::uint32_t> indices;
  std::int64_t correct = 0;
  for (std::size_t begin = test_.size() * rank / size; begin < end; begin += indices.size()) {
    indices.resize(std::min(options_.batch, end - begin));
    std::iota(indices.begin(), indices.end(), static_cast<std::uint32_t>(begin));
    const auto labels = std::span(labels_).first(indices.size());
    copy_batch(test_, indices, images(indices.size()), labels);
    correct +=
        static_cast<std::int64_t>(count_correct(network_.forward(images(indices.size())), labels));
  }
  communicator_.all_reduce(&correct, &correct, 1, DType::Int64, ReduceOp::Sum).wait();
  return static_cast<double>(correct) / static_cast<double>(test_.size());
}

double Trainer::mean_over_ranks(double value) {
  communicator_.all_reduce(&value, &value, 1, DType::Float64, ReduceOp::Average).wait();
  return value;
}

bool Trainer::replicas_identical() {
  const auto mine = std::bit_cast<std::int64_t>(parameters_hash());
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator_.size()));
  communicator_.all_gather(&mine, all.data(), 1, DType::Int64).wait();
  return std::all_of(all.begin(), all.end(), [mine](std::int64_t other) { return other == mine; });
}

Cost Trainer::cost() {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const tersum::ExchangeStatistics statistics = exchange_.statistics();
  const double steps = static_cast<double>(steps_);
  const double exchanged = static_cast<double>(std::max<std::uint64_t>(statistics.steps, 1));
  const double images = steps * static_cast<double>(options_.batch) * communicator_.size();
  Cost cost;
  cost.sent_bytes_per_step =
      mean_over_ranks(static_cast<double>(statistics.sent_bytes)) / exchanged;
  cost.dense_bytes_per_step =
      mean_over_ranks(static_cast<double>(statistics.dense_bytes)) / exchanged;
  cost.exposed_ms_per_step = mean_over_ranks(Milliseconds(exposed_).count() / steps);
  cost.compute_ms_per_step = mean_over_ranks(Milliseconds(training_ - exposed_).count() / steps);
  cost.samples_per_second =
      images / mean_over_ranks(std::chrono::duration<double>(training_).count());
  return cost;
}

}  // namespace mnist
