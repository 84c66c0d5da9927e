// Compressed all-reduces of fp32 between the GPUs of a host, against NCCL's dense one: one process
// per GPU, the same buffers and streams, timed in turn in one run, results checked.
//
//   compressed_cuda --ranks 2 --min 256K --max 1G --specs "fp16;qint:bits=4+ef" --blocks 264,396
//       --compare nccl --nccl-library libnccl.so.2 --json out.json
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/collective_graph.hpp"
#include "cuda/collective_reference.hpp"
#include "cuda/collective_support.hpp"
#include "cuda/compressed.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/nccl_loader.hpp"
#include "json_file.hpp"
#include "ranks_cuda.hpp"

namespace tersum::gpu {
namespace {

struct Options {
  int ranks = 2;
  std::size_t min_bytes = std::size_t{256} << 10, max_bytes = std::size_t{1} << 30;
  std::size_t factor = 4;
  int repeats = 5;
  std::vector<std::string> specs{
      "fp16",           "bf16",        "qint:bits=8", "qint:bits=4",
      "qint:bits=4+ef", "qint:bits=2", "sign+ef",     "topk:ratio=0.01+ef"};
  std::vector<int> blocks{0};
  bool nccl = false;
  std::string nccl_library;  // empty: searched for
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--ranks") {
      options.ranks = parse_count(value);
    } else if (name == "--min") {
      options.min_bytes = parse_bytes(value);
    } else if (name == "--max") {
      options.max_bytes = parse_bytes(value);
    } else if (name == "--factor") {
      options.factor = std::max<std::size_t>(2, parse_bytes(value));
    } else if (name == "--repeats") {
      options.repeats = parse_count(value);
    } else if (name == "--specs") {
      options.specs = split(value, ';');
    } else if (name == "--blocks") {
      options.blocks.clear();
      for (const auto& part : split(value, ',')) {
        options.blocks.push_back(parse_count(part));
      }
    } else if (name == "--compare") {
      options.nccl = parse_rival(value);
    } else if (name == "--nccl-library") {
      options.nccl_library = value;
    } else if (name == "--json") {
      options.json = value;
    } else {
      refuse("no option " + name);
    }
  }
  if (argc % 2 == 0) refuse("an option without a value");
  return options;
}

/// What is measured: one operation on `count` elements goes into the stream.
struct Contender {
  std::string name;
  double error_limit;  ///< root mean square, relative to the exact sum's
  std::function<void(std::size_t count)> prepare;
  std::function<void(std::size_t count)> submit;
};

/// Larger errors are mistakes. With feedback, one step's may be larger than the sum itself.
double error_limit(const std::string& spec) {
  if (spec.starts_with("fp16")) return 1e-3;
  if (spec.starts_with("bf16")) return 1e-2;
  if (spec.starts_with("qint:bits=8")) return 2e-2;
  if (spec.starts_with("qint:bits=4")) return 0.3;
  return 3;
}

class Bench {
 public:
  Bench(const Options& options, const RankRole& role)
      : options_(options),
        role_(role),
        guard_(role.rank),
        input_(options.max_bytes),
        output_(options.max_bytes),
        peers_(role.rank, role.size, role.all_gather, settings()),
        decoded_(stream_) {
    for (const int blocks : options.blocks) {
      groups_.push_back(std::make_unique<CompressedCommunicator>(peers_, role.all_gather,
                                                                 CompressedSettings{blocks}));
      for (const std::string& spec : options.specs) add(*groups_.back(), spec, blocks);
    }
    if (options.nccl) add_nccl();
    fill();
  }

  void run() {
    if (role_.rank == 0) header();
    for (std::size_t bytes = options_.min_bytes; bytes <= options_.max_bytes;
         bytes *= options_.factor) {
      measure(bytes);
    }
    if (role_.rank == 0 && !options_.json.empty()) write_results();
    stream_.synchronize();
    for (auto& group : groups_) group->close();
    peers_.close();
  }

 private:
  static PeerSettings settings() {
    PeerSettings settings;
    settings.timeout = std::chrono::seconds(5);
    return settings;
  }

  struct Method {
    CompressedMethod method;
    std::unique_ptr<TwinState> state, reducer_state;
    DeviceBuffer workspace;
  };

  void add(CompressedCommunicator& group, const std::string& spec, int blocks) {
    methods_.push_back(std::make_unique<Method>(
        Method{CompressedMethod(make_compressor(spec)), nullptr, nullptr, DeviceBuffer()}));
    Method* used = methods_.back().get();
    std::ostringstream name;
    name << spec;
    if (blocks != 0) name << '/' << blocks;
    contenders_.push_back(
        {name.str(), error_limit(spec), [this, used](std::size_t count) { prepare(*used, count); },
         [this, used, &group](std::size_t count) { submit(*used, group, count); }});
  }

  void prepare(Method& used, std::size_t count) {
    const auto steps = TwinState::Steps::Final;
    used.state = used.method.make_state(count, stream_, steps);
    used.reducer_state = used.method.make_reducer_state(count, stream_, steps);
    used.workspace = DeviceBuffer(used.method.workspace_bytes(count, role_.size));
    stream_.synchronize();
  }

  void submit(const Method& used, CompressedCommunicator& group, std::size_t count) {
    CompressedSlice slice;
    slice.input = input_.as<float>();
    slice.output = output_.as<float>();
    slice.count = count;
    slice.context.rank = static_cast<std::uint32_t>(role_.rank);
    slice.state = used.state.get();
    slice.reducer_state = used.reducer_state.get();
    slice.workspace = {used.workspace.data(), used.workspace.bytes()};
    slice.decoded = &decoded_;
    group.all_reduce(used.method, slice, ReduceOp::Sum, stream_);
  }

  void add_nccl() {
    nccl_ = join_nccl(role_, options_.nccl_library);
    contenders_.push_back({"nccl-" + nccl_->library().version(), 1e-5, [](std::size_t) {},
                           [this](std::size_t count) {
                             nccl_->all_reduce(input_.data(), output_.data(), count, DType::Float32,
                                               ReduceOp::Sum, stream_);
                           }});
  }

  /// Element i of a rank: a number from -1 to 1, the same in every period.
  static constexpr std::size_t kPeriod = std::size_t{1} << 20;
  static float value(std::size_t i, int rank) {
    const auto seed = static_cast<std::uint64_t>(rank) * kPeriod + i % kPeriod;
    return static_cast<float>(mix_bits(seed + 1) >> 40) / 8388608.0f - 1.0f;
  }

  void fill() {
    std::vector<float> pattern(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) pattern[i] = value(i, role_.rank);
    for (std::size_t at = 0; at < input_.bytes(); at += kPeriod * sizeof(float)) {
      check(cudaMemcpy(input_.data() + at, pattern.data(),
                       std::min(kPeriod * sizeof(float), input_.bytes() - at), cudaMemcpyDefault),
            "fill");
    }
    for (int r = 0; r < role_.size; ++r) {
      for (std::size_t i = 0; i < kPeriod; ++i)
        pattern[i] = (r == 0 ? 0 : pattern[i]) + value(i, r);
    }
    exact_ = pattern;
  }

  /// Error of head, middle and tail of the output after one operation.
  double error_of(const Contender& contender, std::size_t count) {
    check(cudaMemsetAsync(output_.data(), 0xff, count * sizeof(float), stream_.get()), "poison");
    contender.submit(count);
    stream_.synchronize();
    if (!peers_.status().is_ok()) throw Error(Code::PeerLost, peers_.status().to_string());
    const std::size_t window = std::min<std::size_t>(count, 300'000);
    std::vector<float> got(window);
    double error = 0, norm = 0;
    for (const std::size_t start : {std::size_t{0}, (count - window) / 2, count - window}) {
      check(cudaMemcpy(got.data(), output_.data() + start * sizeof(float), window * sizeof(float),
                       cudaMemcpyDefault),
            "read");
      for (std::size_t i = 0; i < window; ++i) {
        const double wanted = exact_[(start + i) % kPeriod];
        error += (got[i] - wanted) * (got[i] - wanted);
        norm += wanted * wanted;
      }
    }
    return std::sqrt(error / norm);
  }

  /// Largest of all ranks' values; a NaN counts as infinite.
  double largest(double own) const {
    if (std::isnan(own)) own = INFINITY;
    for (const auto& blob : role_.all_gather(std::as_bytes(std::span(&own, 1)))) {
      double other = 0;
      std::memcpy(&other, blob.data(), sizeof(other));
      own = std::max(own, other);
    }
    return own;
  }

  /// Microseconds of `work`, the slowest rank's.
  double time(const std::function<void()>& work) {
    const Event start(Event::Timing::On), end(Event::Timing::On);
    largest(0);
    peers_.barrier(stream_);
    start.record(stream_);
    work();
    end.record(stream_);
    end.synchronize();
    if (!peers_.status().is_ok()) throw Error(Code::PeerLost, peers_.status().to_string());
    return largest(end.milliseconds_since(start) * 1000.0);
  }

  void measure(std::size_t bytes) {
    const int operations = bytes >= std::size_t{256} << 20 ? 10 : 50;
    const std::size_t count = bytes / sizeof(float);
    std::vector<std::unique_ptr<Graph>> graphs;
    std::vector<double> errors;
    std::vector<std::vector<double>> times(contenders_.size());
    for (const Contender& contender : contenders_) {
      contender.prepare(count);
      errors.push_back(largest(error_of(contender, count)));
      graphs.push_back(std::make_unique<Graph>(stream_, [&] {
        for (int i = 0; i < operations; ++i) contender.submit(count);
      }));
    }
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {
      for (std::size_t i = 0; i < contenders_.size(); ++i) {
        const double us = time([&] { graphs[i]->launch(stream_); }) / operations;
        if (repeat >= 0) times[i].push_back(us);
      }
    }
    if (role_.rank == 0) report(bytes, times, errors);
  }

  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
  }

  void header() {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, role_.rank), "properties");
    card_ = properties.name;
    std::printf("# %d x %s, all-reduce of fp32; ratio: time of the last over this\n", role_.size,
                properties.name);
    std::printf("%11s %-36s %10s %8s %10s %10s\n", "bytes", "method", "us", "ratio", "GB/s",
                "error");
    std::fflush(stdout);
  }

  void report(std::size_t bytes, const std::vector<std::vector<double>>& times,
              const std::vector<double>& errors) {
    const double reference = median(times.back());
    for (std::size_t i = 0; i < times.size(); ++i) {
      const double us = median(times[i]);
      const bool right = errors[i] <= contenders_[i].error_limit;
      std::printf("%11zu %-36s %10.2f %8.2f %10.1f %10.2e %s\n", bytes, contenders_[i].name.c_str(),
                  us, reference / us, static_cast<double>(bytes) / us * 1e-3, errors[i],
                  right ? "" : "WRONG");
      rows_.push_back({{"bytes", bytes},
                       {"name", contenders_[i].name},
                       {"us", us},
                       {"ratio", reference / us},
                       {"error", errors[i]},
                       {"right", right}});
    }
    std::fflush(stdout);
  }

  void write_results() const {
    write_json(
        options_.json,
        {{"tool", "compressed_cuda"}, {"card", card_}, {"ranks", role_.size}, {"rows", rows_}});
  }

  const Options& options_;
  RankRole role_;
  DeviceGuard guard_;
  Stream stream_;
  DeviceBuffer input_, output_;
  PeerCommunicator peers_;
  DecodeStatus decoded_;
  std::vector<std::unique_ptr<CompressedCommunicator>> groups_;
  std::vector<std::unique_ptr<Method>> methods_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::vector<Contender> contenders_;
  std::vector<float> exact_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  std::string card_;
};

}  // namespace
}  // namespace tersum::gpu

int main(int argc, char** argv) {
  return tersum::gpu::bench_main<tersum::gpu::Bench>(argc, argv, tersum::gpu::parse);
}
