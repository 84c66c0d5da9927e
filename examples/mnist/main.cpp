// train_mnist: data-parallel training of a small convolutional network, its gradients compressed
// and exchanged by Tersum.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>

#include "mnist/dataset.hpp"
#include "mnist/report.hpp"
#include "mnist/trainer.hpp"
#include "tersum/tersum.hpp"

namespace {

// With the library's general default all gradients of this small model would travel as one bucket,
// and none before the last is ready.
constexpr std::size_t kBucketBytes = 256u << 10;

struct Options {
  mnist::TrainingOptions training;
  std::filesystem::path data = TRAIN_MNIST_DATA;
  std::size_t train = 0;
  std::size_t test = 0;
  std::filesystem::path json;
};

void declare(CLI::App& app, Options& options) {
  mnist::TrainingOptions& training = options.training;
  app.add_option("--compressor", training.exchange.compressor,
                 "compressor of all gradients, as topk:ratio=0.01+ef [TERSUM_COMPRESSOR]");
  app.add_option("--rules", training.exchange.compressor_rules,
                 "compressors by gradient, as \"*.bias=none; fc1*=topk:ratio=0.001+ef\" "
                 "[TERSUM_COMPRESSOR_RULES]");
  app.add_option("--epochs", training.epochs, "passes over the training images")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--batch", training.batch, "images of each rank in a step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--lr", training.learning_rate, "largest learning rate")
      ->check(CLI::Range(1e-9, 100.0))
      ->capture_default_str();
  app.add_option("--momentum", training.momentum, "of SGD")
      ->check(CLI::Range(0.0, 0.9999))
      ->capture_default_str();
  app.add_option("--seed", training.seed,
                 "of parameters, of the order of images and of compressors")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  app.add_option("--slice-bytes", training.exchange.slice_bytes,
                 "slices are cut to about this size [TERSUM_SLICE_BYTES]")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--bucket-bytes", training.exchange.bucket_bytes,
                 "gradients are fused up to this size [TERSUM_BUCKET_BYTES, or 262144]")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--data", options.data, "folder of the MNIST files")->capture_default_str();
  app.add_option("--train", options.train, "use the first N training images; 0: all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--test", options.test, "use the first N test images; 0: all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--json", options.json, "rank 0 writes the result here");
}

void complete(mnist::TrainingOptions& training, const tersum::Config& config) {
  if (!training.exchange.bucket_bytes &&
      tersum::setting_value(config, "TERSUM_BUCKET_BYTES").origin == "default") {
    training.exchange.bucket_bytes = kBucketBytes;
  }
  training.exchange.seed = training.seed;
}

// Outlives an error in it, so that the job can be told before anything waits for gradients.
struct Job {
  tersum::Communicator communicator;
  mnist::Dataset train;
  mnist::Dataset test;
  std::optional<mnist::Trainer> trainer;
};

void run(Job& job, Options options) {
  const tersum::Config& config = job.communicator.config();
  complete(options.training, config);
  mnist::Report report(job.communicator.rank(), options.json);
  job.train = mnist::load_dataset(options.data, "train", options.train);
  job.test = mnist::load_dataset(options.data, "test", options.test);
  mnist::Trainer& trainer =
      job.trainer.emplace(job.communicator, options.training, job.train, job.test);

  mnist::Summary summary;
  summary.compressor = options.training.exchange.compressor.value_or(config.compressor);
  summary.epochs = options.training.epochs;
  summary.ranks = job.communicator.size();
  summary.seed = options.training.seed;
  summary.parameters_count = trainer.parameters_count();
  report.header(summary, config.transport, job.train.size(), job.test.size());
  const auto begin = std::chrono::steady_clock::now();
  for (int epoch = 1; epoch <= summary.epochs; ++epoch) {
    summary.last_epoch = trainer.run_epoch([&](std::size_t step, std::size_t steps) {
      report.progress(epoch, summary.epochs, step, steps);
    });
    report.epoch(epoch, summary.epochs, summary.last_epoch);
  }
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  summary.cost = trainer.cost();
  summary.parameters_hash = trainer.parameters_hash();
  summary.replicas_identical = trainer.replicas_identical();
  report.finish(summary);
  if (!summary.replicas_identical) {
    throw tersum::Error(tersum::Code::Internal, "the replicas' parameters differ");
  }
}

// One line that says which rank it was, and the end of the job for the others, now, instead of when
// they miss this rank.
void fail(Job& job, const std::string& reason) {
  const bool joined = job.communicator.valid();
  std::string line = joined ? "rank " + std::to_string(job.communicator.rank()) + ": " : "";
  line += reason;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::fprintf(stderr, "train_mnist: %s\n", line.c_str());
  try {
    if (joined) job.communicator.abort(reason);
  } catch (const std::exception&) {  // the job has ended already
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small network on MNIST, data-parallel over the ranks of the job.");
  declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  Job job;
  try {
    job.communicator = tersum::Communicator::connect();
    run(job, options);
    return 0;
  } catch (const std::exception& error) {
    fail(job, error.what());
    return 1;
  }
}
