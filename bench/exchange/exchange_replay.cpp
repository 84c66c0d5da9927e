// Replays a measured backward pass on GPUs with a real exchange, and reports what communication
// adds to a step.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "exchange/replay.hpp"
#include "json_file.hpp"

namespace tersum::replay {
namespace {

struct Options {
  std::string trace, json;
  std::vector<std::string> compressors{"none", "fp16", "qint:bits=4+ef", "topk:ratio=0.01+ef"};
  int steps = 7;
  double link_gbit = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Replays a measured backward pass with kernels of its durations, exchanges its "
      "gradients, and waits for them\nlayer by layer in a forward pass of half the time. "
      "Start it under tersum-run or any launcher, one rank per GPU."};
  app.add_option("trace", options.trace, "CSV with columns name, numel, gap_us in backward order")
      ->required();
  app.add_option("-c,--compressors", options.compressors, "specs, separated by ';'")
      ->delimiter(';');
  app.add_option("-s,--steps", options.steps, "timed steps of each")->check(CLI::Range(1, 100000));
  app.add_option("--link-gbit", options.link_gbit,
                 "rate of one rank's link in Gbit/s, for the bound");
  app.add_option("--json", options.json, "file for the results");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

void print(const Result& result, double compute_ms) {
  std::printf("%-28s %12.1f %10.2f %10.2f", result.compressor.c_str(), result.wire_bytes / 1e6,
              result.iteration_ms, result.iteration_ms - compute_ms);
  if (result.bound_ms > 0)
    std::printf(" %10.2f %10.2f", result.bound_ms, result.iteration_ms / result.bound_ms);
  std::printf("\n");
  std::fflush(stdout);
}

void run(const Options& options) {
  auto communicator = Communicator::connect(Config::from_environment());
  const auto devices = gpu::devices();
  if (devices.empty()) throw Error(Code::Unsupported, "there is no GPU here");
  gpu::check(cudaSetDevice(communicator.rank() % static_cast<int>(devices.size())),
             "cudaSetDevice");
  const bool speaks = communicator.rank() == 0;
  Replay replay(communicator, read_trace(options.trace), options.link_gbit * 1e9 / 8);
  const double compute_ms = replay.compute_ms(options.steps);
  const std::string trace = options.trace.substr(options.trace.rfind('/') + 1);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (speaks) {
    std::printf("# %d x %s, driver for CUDA %s; %s: %.1f MB of fp32 gradients, compute %.2f ms\n",
                communicator.size(), devices.front().name.c_str(), gpu::driver_version().c_str(),
                trace.c_str(), static_cast<double>(replay.bytes()) / 1e6, compute_ms);
    std::printf("%-28s %12s %10s %10s %10s %10s\n", "# compressor", "wire MB", "step ms",
                "exposed ms", options.link_gbit > 0 ? "bound ms" : "",
                options.link_gbit > 0 ? "step/bound" : "");
  }
  for (const std::string& compressor : options.compressors) {
    const Result result = replay.run(compressor, options.steps);
    if (!speaks) continue;
    print(result, compute_ms);
    rows.push_back({{"compressor", result.compressor},
                    {"iteration_ms", result.iteration_ms},
                    {"compute_ms", compute_ms},
                    {"wire_bytes", result.wire_bytes},
                    {"bound_ms", result.bound_ms}});
  }
  if (speaks && !options.json.empty()) {
    write_json(options.json, {{"tool", "exchange_replay"},
                              {"card", devices.front().name},
                              {"ranks", communicator.size()},
                              {"trace", trace},
                              {"link_gbit", options.link_gbit},
                              {"rows", rows}});
  }
}

}  // namespace
}  // namespace tersum::replay

int main(int argc, char** argv) {
  const auto options = tersum::replay::parse(argc, argv);
  try {
    tersum::replay::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exchange_replay: %s\n", error.what());
    return 1;
  }
  return 0;
}
