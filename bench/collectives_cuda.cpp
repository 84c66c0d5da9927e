// Collectives between the GPUs of a host, against NCCL: one process per GPU, the same buffers and
// streams, timed in turn in one run, results checked.
//
//   collectives_cuda --ranks 2 --min 1K --max 1G --compare nccl --nccl-library libnccl.so.2
//       --collectives all_reduce,all_gather --dtype fp32 --graph-ops 50 --json out.json
//       --variant name:algorithm=push,push_blocks=64
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives_cuda_options.hpp"
#include "cuda/buffer.hpp"
#include "cuda/collective_graph.hpp"
#include "cuda/collective_support.hpp"
#include "cuda/collectives.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/nccl_loader.hpp"
#include "json_file.hpp"
#include "ranks_cuda.hpp"

namespace tersum::gpu {
namespace {

/// Puts one operation on `bytes` (of the largest tensor in it) into a stream.
using Submit = std::function<void(const std::string& collective, std::size_t bytes)>;

struct Contender {
  std::string name;
  Submit submit;
  std::function<Status()> status;
};

class Bench {
 public:
  Bench(const Options& options, const RankRole& role)
      : options_(options),
        role_(role),
        guard_(role.rank),
        input_(options.max_bytes),
        output_(options.max_bytes),
        elements_(options.max_bytes / element_bytes(options.dtype)) {
    for (const Variant& variant : options.variants) add(variant);
    if (options.nccl) add_nccl();
    fill();
  }

  void run() {
    if (role_.rank == 0) header();
    for (const std::string& collective : options_.collectives) {
      const auto factor = static_cast<std::size_t>(options_.factor);
      for (std::size_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes *= factor) {
        measure(collective, bytes, false);
        if (options_.eager && bytes <= (std::size_t{64} << 10)) measure(collective, bytes, true);
      }
    }
    if (role_.rank == 0 && !options_.json.empty()) write_results();
    for (auto& peer : peers_) peer->close();
  }

 private:
  std::size_t run_count(const std::string& collective, std::size_t bytes) const {
    const std::size_t count = bytes / element_bytes(options_.dtype);
    const bool parts =
        collective == "reduce_scatter" || collective == "all_gather" || collective == "all_to_all";
    return parts ? count / static_cast<std::size_t>(role_.size) : count;
  }

  template <class Communicator, class... More>
  void submit(Communicator& c, const std::string& collective, std::size_t bytes, More... more) {
    const std::size_t count = run_count(collective, bytes);
    const std::byte* in = input_.data();
    std::byte* out = output_.data();
    const DType dtype = options_.dtype;
    if (collective == "all_reduce") {
      c.all_reduce(in, out, count, dtype, ReduceOp::Sum, stream_, more...);
    } else if (collective == "reduce_scatter") {
      c.reduce_scatter(in, out, count, dtype, ReduceOp::Sum, stream_, more...);
    } else if (collective == "all_gather") {
      submit_copy(c, collective, count, more...);
    } else if (collective == "reduce") {
      c.reduce(in, out, count, dtype, ReduceOp::Sum, 0, stream_, more...);
    } else {
      submit_copy(c, collective, count, more...);
    }
  }

  template <class Communicator>
  void submit_copy(Communicator& c, const std::string& collective, std::size_t count, Scales = {},
                   Algorithm algorithm = Algorithm::Auto) {
    const std::byte* in = input_.data();
    std::byte* out = output_.data();
    const DType dtype = options_.dtype;
    constexpr bool kOurs = std::is_same_v<Communicator, PeerCommunicator>;
    const auto call = [&](auto method, auto... arguments) {
      if constexpr (kOurs) {
        (c.*method)(arguments..., stream_, algorithm);
      } else {
        (c.*method)(arguments..., stream_);
      }
    };
    if (collective == "all_gather") {
      call(&Communicator::all_gather, in, out, count, dtype);
    } else if (collective == "broadcast") {
      call(&Communicator::broadcast, in, out, count, dtype, 0);
    } else if (collective == "all_to_all") {
      call(&Communicator::all_to_all, in, out, count, dtype);
    } else if (collective == "send_receive") {
      const int to = (role_.rank + 1) % role_.size;
      const int from = (role_.rank + role_.size - 1) % role_.size;
      c.send_receive(in, to, out, from, count, dtype, stream_);
    } else {
      refuse("no collective " + collective);
    }
  }

  void add(const Variant& variant) {
    peers_.push_back(std::make_unique<PeerCommunicator>(role_.rank, role_.size, role_.all_gather,
                                                        variant.settings));
    PeerCommunicator* c = peers_.back().get();
    contenders_.push_back({variant.name,
                           [this, c, algorithm = variant.algorithm](const std::string& collective,
                                                                    std::size_t bytes) {
                             submit(*c, collective, bytes, Scales{}, algorithm);
                           },
                           [c] { return c->status(); }});
  }

  void add_nccl() {
    nccl_ = join_nccl(role_, options_.nccl_library);
    contenders_.push_back({"nccl-" + nccl_->library().version(),
                           [this](const std::string& collective, std::size_t bytes) {
                             submit(*nccl_, collective, bytes);
                           },
                           [] { return Status::ok(); }});
  }

  /// Small integers, exact in every type and sum: element i of rank r is (i + r) % 11.
  static double value(std::size_t i, int rank) {
    return static_cast<double>((i + static_cast<std::size_t>(rank)) % 11);
  }

  void fill() {
    constexpr std::size_t kPeriod = 11 * 65536;
    std::vector<std::byte> pattern(kPeriod * element_bytes(options_.dtype));
    for (std::size_t i = 0; i < kPeriod; ++i) write(pattern.data(), i, value(i, role_.rank));
    for (std::size_t at = 0; at < input_.bytes(); at += pattern.size()) {
      check(cudaMemcpy(input_.data() + at, pattern.data(),
                       std::min(pattern.size(), input_.bytes() - at), cudaMemcpyDefault),
            "fill");
    }
  }

  void write(std::byte* data, std::size_t i, double number) const {
    if (options_.dtype == DType::Float32) {
      const auto typed = static_cast<float>(number);
      std::memcpy(data + 4 * i, &typed, 4);
    } else if (options_.dtype == DType::BFloat16) {
      const auto typed = static_cast<float>(number);  // the integers used have short mantissas
      std::memcpy(data + 2 * i, reinterpret_cast<const std::byte*>(&typed) + 2, 2);
    } else if (options_.dtype == DType::Float16) {
      const __half typed = __float2half(static_cast<float>(number));
      std::memcpy(data + 2 * i, &typed, 2);
    } else {
      refuse("the bench knows fp32, fp16 and bf16");
    }
  }

  double expected(const std::string& collective, std::size_t i, std::size_t count) const {
    const auto part = static_cast<int>(i / count);
    const std::size_t own = static_cast<std::size_t>(role_.rank) * count;
    double sum = 0;
    if (collective == "all_gather") return value(i % count, part);
    if (collective == "all_to_all") return value(own + i % count, part);
    if (collective == "broadcast") return value(i, 0);
    if (collective == "send_receive") return value(i, (role_.rank + role_.size - 1) % role_.size);
    for (int rank = 0; rank < role_.size; ++rank) {
      sum += value(collective == "reduce_scatter" ? own + i : i, rank);
    }
    return sum;
  }

  /// Compares the head, the middle and the tail of the output; poisons it before.
  bool is_right(const Contender& contender, const std::string& collective, std::size_t bytes) {
    check(cudaMemsetAsync(output_.data(), 0xff, bytes, stream_.get()), "poison");
    contender.submit(collective, bytes);
    const std::size_t element = element_bytes(options_.dtype);
    const std::size_t count = run_count(collective, bytes);
    const bool whole = collective != "reduce_scatter";
    const std::size_t total = whole ? bytes / element : count;
    stream_.synchronize();
    if (!contender.status().is_ok()) throw Error(Code::PeerLost, contender.status().to_string());
    if (collective == "reduce" && role_.rank != 0) return contender.status().is_ok();
    const std::size_t window = std::min<std::size_t>(total, 300'000);
    std::vector<std::byte> got(window * element), wanted(window * element);
    bool right = contender.status().is_ok();
    for (const std::size_t start : {std::size_t{0}, (total - window) / 2, total - window}) {
      check(cudaMemcpy(got.data(), output_.data() + start * element, got.size(), cudaMemcpyDefault),
            "read");
      for (std::size_t i = 0; i < window; ++i) {
        write(wanted.data(), i, expected(collective, start + i, count));
      }
      right = right && std::memcmp(got.data(), wanted.data(), got.size()) == 0;
    }
    return right;
  }

  /// Largest of all ranks' values.
  double largest(double own) const {
    const auto blobs = role_.all_gather(std::as_bytes(std::span(&own, 1)));
    for (const auto& blob : blobs) {
      double other = 0;
      std::memcpy(&other, blob.data(), sizeof(other));
      own = std::max(own, other);
    }
    return own;
  }

  /// Microseconds per operation of one repetition, the slowest rank's.
  double time(const std::function<void()>& work, int operations) {
    const Event start(Event::Timing::On), end(Event::Timing::On);
    largest(0);
    peers_[0]->barrier(stream_);
    start.record(stream_);
    work();
    end.record(stream_);
    end.synchronize();
    return largest(end.milliseconds_since(start) * 1000.0 / operations);
  }

  void measure(const std::string& collective, std::size_t bytes, bool eager) {
    const int operations =
        eager ? 200
              : (bytes >= (std::size_t{256} << 20) ? std::min(options_.graph_ops, 10)
                                                   : options_.graph_ops);
    std::vector<std::unique_ptr<Graph>> graphs;
    std::vector<std::string> notes;
    std::vector<std::vector<double>> times(contenders_.size());
    for (const Contender& contender : contenders_) {
      bool right = false;
      try {
        right = is_right(contender, collective, bytes);
        if (is_slow(contender, collective, bytes)) throw Error(Code::Unsupported, "slow");
        graphs.push_back(eager ? nullptr : std::make_unique<Graph>(stream_, [&] {
          for (int i = 0; i < operations; ++i) contender.submit(collective, bytes);
        }));
        notes.push_back(largest(right ? 0 : 1) == 0 ? "" : "WRONG");
      } catch (const Error& error) {
        if (error.code() != Code::InvalidArgument && error.code() != Code::Unsupported) throw;
        graphs.push_back(nullptr);
        notes.push_back("-");
      }
    }
    for (int repeat = -2; repeat < options_.repeats; ++repeat) {
      for (std::size_t i = 0; i < contenders_.size(); ++i) {
        if (notes[i] == "-") continue;
        const double us = time(
            [&] {
              if (!eager) return graphs[i]->launch(stream_);
              for (int k = 0; k < operations; ++k) contenders_[i].submit(collective, bytes);
            },
            operations);
        if (repeat >= 0) times[i].push_back(us);
      }
    }
    if (role_.rank == 0) report(collective, bytes, eager, times, notes);
  }

  /// True if one operation takes so long that fifty of them would cost more than all the rest.
  bool is_slow(const Contender& contender, const std::string& collective, std::size_t bytes) {
    const double limit_us = 500.0 + static_cast<double>(bytes) / 100e3;  // 100 GB/s
    return time([&] { contender.submit(collective, bytes); }, 1) > limit_us;
  }

  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  void header() {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, role_.rank), "properties");
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "driver");
    card_ = properties.name;
    std::printf("# %d x %s, CUDA driver %d, %s, microseconds per operation (ratio to the last)\n",
                role_.size, properties.name, driver,
                std::string(to_string(options_.dtype)).c_str());
    std::printf("%-14s %11s %-5s", "collective", "bytes", "");
    for (const Contender& contender : contenders_) std::printf(" %20s", contender.name.c_str());
    std::printf("\n");
    std::fflush(stdout);
  }

  void report(const std::string& collective, std::size_t bytes, bool eager,
              const std::vector<std::vector<double>>& times,
              const std::vector<std::string>& notes) {
    std::printf("%-14s %11zu %-5s", collective.c_str(), bytes, eager ? "eager" : "graph");
    const double reference = median(times.back());
    for (std::size_t i = 0; i < times.size(); ++i) {
      const double us = median(times[i]);
      std::printf(" %8.2f (%5.2f) %-4s", us, us > 0 ? reference / us : 0.0,
                  notes[i].substr(0, 4).c_str());
      if (us <= 0) continue;
      rows_.push_back({{"collective", collective},
                       {"bytes", bytes},
                       {"mode", eager ? "eager" : "graph"},
                       {"name", contenders_[i].name},
                       {"us", us},
                       {"ratio", reference / us},
                       {"right", notes[i].empty()}});
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  void write_results() const {
    write_json(options_.json, {{"tool", "collectives_cuda"},
                               {"card", card_},
                               {"ranks", role_.size},
                               {"dtype", to_string(options_.dtype)},
                               {"graph_ops", options_.graph_ops},
                               {"rows", rows_}});
  }

  const Options& options_;
  RankRole role_;
  DeviceGuard guard_;
  Stream stream_;
  DeviceBuffer input_, output_;
  std::size_t elements_;
  std::vector<std::unique_ptr<PeerCommunicator>> peers_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::vector<Contender> contenders_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  std::string card_;
};

}  // namespace
}  // namespace tersum::gpu

int main(int argc, char** argv) {
  return tersum::gpu::bench_main<tersum::gpu::Bench>(argc, argv, tersum::gpu::parse);
}
