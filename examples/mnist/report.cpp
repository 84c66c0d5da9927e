#include "mnist/report.hpp"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "tersum/error.hpp"

namespace mnist {
namespace {

constexpr int kBarWidth = 40;

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

nlohmann::ordered_json to_json(const Summary& summary) {
  nlohmann::ordered_json json = {
      {"compressor", summary.compressor},
      {"epochs", summary.epochs},
      {"ranks", summary.ranks},
      {"seed", summary.seed},
      {"test_accuracy", 100.0 * summary.last_epoch.test_accuracy},
      {"train_loss", summary.last_epoch.train_loss},
      {"sent_bytes_per_step", summary.cost.sent_bytes_per_step},
      {"dense_bytes_per_step", summary.cost.dense_bytes_per_step},
      {"wire_ratio", nullptr},  // a single rank sends nothing
      {"exposed_ms_per_step", summary.cost.exposed_ms_per_step},
      {"compute_ms_per_step", summary.cost.compute_ms_per_step},
      {"samples_per_second", summary.cost.samples_per_second},
      {"seconds", summary.seconds},
      {"replicas_identical", summary.replicas_identical},
      // Text: readers that keep numbers as doubles would round it.
      {"parameters_hash", hexadecimal(summary.parameters_hash)},
      {"parameters", summary.parameters_count},
  };
  if (summary.cost.dense_bytes_per_step > 0.0) {
    json["wire_ratio"] = summary.cost.sent_bytes_per_step / summary.cost.dense_bytes_per_step;
  }
  return json;
}

}  // namespace

Report::Report(int rank, const std::filesystem::path& json)
    : speaks_(rank == 0), terminal_(isatty(STDOUT_FILENO) == 1), path_(json) {
  if (!speaks_ || path_.empty()) return;
  json_.open(path_);
  if (!json_) {
    throw tersum::Error(tersum::Code::System,
                        "cannot write " + path_.string() + " (--json): " + std::strerror(errno));
  }
}

void Report::header(const Summary& summary, const std::string& transport, std::size_t train_images,
                    std::size_t test_images) const {
  if (!speaks_) return;
  std::printf("%d rank%s, %zu parameters, compressor %s, transport %s\n", summary.ranks,
              summary.ranks == 1 ? "" : "s", summary.parameters_count, summary.compressor.c_str(),
              transport.c_str());
  std::printf("%zu training images, %zu test images, %d epochs, seed %" PRIu64 "\n", train_images,
              test_images, summary.epochs, summary.seed);
  std::fflush(stdout);
}

void Report::progress(int epoch, int epochs, std::size_t step, std::size_t steps) const {
  if (!speaks_ || !terminal_) return;
  const int filled = static_cast<int>(step * kBarWidth / steps);
  if (step > 1 && filled == static_cast<int>((step - 1) * kBarWidth / steps)) return;
  const std::string bar(static_cast<std::size_t>(filled), '#');
  std::printf("\repoch %d/%d [%-*s]", epoch, epochs, kBarWidth, bar.c_str());
  std::fflush(stdout);
}

void Report::epoch(int epoch, int epochs, const EpochResult& result) const {
  if (!speaks_) return;
  // The spaces wipe out what is longer of a bar on this line.
  std::printf("%sepoch %d/%d  loss %.4f  test accuracy %5.2f %%%*s\n", terminal_ ? "\r" : "", epoch,
              epochs, result.train_loss, 100.0 * result.test_accuracy, terminal_ ? 12 : 0, "");
  std::fflush(stdout);
}

void Report::finish(const Summary& summary) {
  if (!speaks_) return;
  const Cost& cost = summary.cost;
  std::printf("\n");
  std::printf("test accuracy        %12.2f %%\n", 100.0 * summary.last_epoch.test_accuracy);
  std::printf("sent by each rank    %12.0f bytes/step\n", cost.sent_bytes_per_step);
  std::printf("dense fp32           %12.0f bytes/step\n", cost.dense_bytes_per_step);
  if (cost.dense_bytes_per_step > 0.0) {
    std::printf("wire ratio           %12.4f sent/dense\n",
                cost.sent_bytes_per_step / cost.dense_bytes_per_step);
  }
  std::printf("exposed              %12.2f ms/step\n", cost.exposed_ms_per_step);
  std::printf("compute              %12.2f ms/step\n", cost.compute_ms_per_step);
  std::printf("throughput           %12.0f samples/s\n", cost.samples_per_second);
  std::printf("replicas identical   %12s\n", summary.replicas_identical ? "yes" : "no");
  std::fflush(stdout);
  if (!json_.is_open()) return;
  json_ << to_json(summary).dump(2) << '\n';
  json_.close();
  if (!json_) {
    throw tersum::Error(tersum::Code::System,
                        "cannot write all of " + path_.string() + " (--json)");
  }
}

}  // namespace mnist
