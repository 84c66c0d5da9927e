// Times the device twins of compressors against a copy of the same bytes in the same run.
//
// usage: compressors_cuda [--count N]... [--spec SPEC]... [--repeat N] [--shift] [--json FILE]
//
// Each row is one method at one size: the median time of encoding (with its residual, where it has
// one, and a fresh gradient in each step), of decoding into a buffer and of decoding onto a sum.
// "floor" is the time in which the device copies as many bytes as the call has to read and write at
// least: gradient, residual and velocity once in and the latter out, the payload, the result. Sums
// of sparse payloads touch single sectors all over memory, which no copy is a measure for: their
// floor is a kernel that does only that, with indices and values as they are, and the payload's
// copy. Small sizes are timed as a CUDA graph of many calls on buffers in turn, so that neither
// caches nor launches from the host flatter or blur them.
//
// With --shift the gradients of successive steps are distributed differently: normal; four times
// that; a quarter; cubes of normal numbers. "slowest" is then the slowest step, and "missed" counts
// the steps in which topk's guess from the step before was of no use.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"
#include "cuda/topk_twin.hpp"
#include "cuda/twin.hpp"
#include "cuda/twin_methods.hpp"
#include "tersum/compressor.hpp"

namespace tersum::gpu {
namespace {

struct Distribution {
  float scale = 1;
  bool cubed = false;  // heavy tails
};
constexpr Distribution kShifting[] = {{}, {4}, {0.25f}, {1, true}};

/// Normally distributed numbers by Box and Muller, from a hash of the position; or their cubes.
__global__ void fill_gradient(float* out, std::size_t count, std::uint32_t seed,
                              Distribution distribution) {
  const std::size_t i = blockIdx.x * std::size_t{256} + threadIdx.x;
  if (i >= count) return;
  const auto mix = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 16);
  };
  const std::uint64_t place = (static_cast<std::uint64_t>(seed) << 40) + i;
  const float u = (static_cast<float>(mix(2 * place) >> 8) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(mix(2 * place + 1) >> 8) * 0x1p-24f;
  const float x = sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
  out[i] = (distribution.cubed ? x * x * x : x) * distribution.scale * 1e-3f;
}

/// Ascending indices, one in each of `kept` equal parts of `count` elements.
__global__ void fill_indices(std::uint32_t* indices, std::size_t count, std::size_t kept) {
  const std::size_t j = blockIdx.x * std::size_t{256} + threadIdx.x;
  if (j >= kept) return;
  const std::size_t first = j * count / kept, room = (j + 1) * count / kept - first;
  indices[j] = static_cast<std::uint32_t>(first + j * 0x9e3779b97f4a7c15ull % room);
}

/// All that adding a sparse payload to a sum has to do, once it is decoded.
__global__ void add_at(float* sums, const std::uint32_t* indices, const float* values,
                       std::size_t kept) {
  const std::size_t j = blockIdx.x * std::size_t{256} + threadIdx.x;
  if (j < kept) sums[indices[j]] += 0.5f * values[j];
}

unsigned blocks_of_256(std::size_t count) {
  return static_cast<unsigned>((count + 255) / 256);
}

struct Options {
  std::vector<std::size_t> counts;
  std::vector<std::string> specs;
  int repeat = 15;
  bool shift = false;
  std::string json;
};

struct Row {
  std::string spec;
  std::size_t count;
  std::size_t payload_bytes;
  double encode_us, encode_slowest_us, encode_floor_us;
  std::uint32_t steps, missed;  // of topk
  double decode_us, decode_floor_us;
  double add_us, add_floor_us;
};

/// Steps before those that are timed.
constexpr int kWarmUp = 8;

struct Times {
  double median_us, slowest_us;
};

Times summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.back()};
}

/// Microseconds of work(turn), where turn counts up. Large work is timed call by call, small work
/// as a graph of `in_graph` calls.
Times time_of(StreamView stream, int repeat, int in_graph, const std::function<void(int)>& work) {
  const Event start(Event::Timing::On);
  const Event end(Event::Timing::On);
  std::vector<double> times;
  if (in_graph <= 1) {
    for (int i = 0; i < repeat + kWarmUp; ++i) {
      start.record(stream);
      work(i);
      end.record(stream);
      end.synchronize();
      if (i >= kWarmUp) times.push_back(end.milliseconds_since(start) * 1e3);
    }
    return summary(times);
  }
  for (int i = 0; i < in_graph; ++i) work(i);  // loads the kernels
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < in_graph; ++i) work(i);
  check(cudaStreamEndCapture(stream.get(), &graph), "capture");
  check(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < repeat + 3; ++i) {
    start.record(stream);
    check(cudaGraphLaunch(runnable, stream.get()), "cudaGraphLaunch");
    end.record(stream);
    end.synchronize();
    if (i >= 3) times.push_back(end.milliseconds_since(start) * 1e3 / in_graph);
  }
  check(cudaGraphExecDestroy(runnable), "graph");
  check(cudaGraphDestroy(graph), "graph");
  return summary(times);
}

/// Buffers of one size: gradients in turn, and room for everything else.
class Workbench {
 public:
  Workbench(std::size_t count, int repeat, bool shift)
      : count_(count), repeat_(repeat), shift_(shift) {
    const bool large = shift || count * sizeof(float) > (std::size_t{128} << 20);
    turns_ = shift   ? static_cast<int>(std::size(kShifting))
             : large ? 2
                     : static_cast<int>(std::clamp<std::size_t>(
                           (std::size_t{256} << 20) / (count * sizeof(float)), 2, 64));
    in_graph_ = large ? 1 : turns_;
    for (int t = 0; t < turns_; ++t) gradients_.emplace_back(count * sizeof(float));
    restore();
    measure_copy();
  }

  double copy_bytes_per_us() const { return copy_bytes_per_us_; }

  Row measure(const std::string& spec) {
    const auto compressor = make_compressor(spec);
    const auto twin = Twin::make(*compressor);
    if (twin == nullptr) throw Error(Code::Unsupported, spec + " has no twin");
    Row row{compressor->spec(), count_, twin->payload_bytes(count_)};
    std::vector<std::unique_ptr<TwinState>> states;
    std::vector<DeviceBuffer> payloads;
    for (int t = 0; t < in_graph_; ++t) {
      states.push_back(twin->make_state(count_, stream_));
      payloads.emplace_back(row.payload_bytes);
    }
    const DeviceBuffer workspace(twin->workspace_bytes(count_));
    const DecodeStatus status(stream_);
    const std::span<std::byte> space(workspace.data(), workspace.bytes());
    const SliceContext context{1, 2, 3, 0, 0};
    const Times encoding = time_of(stream_, repeat_, in_graph_, [&](int i) {
      const auto slot = static_cast<std::size_t>(i % in_graph_);
      twin->compress(stream_, gradient(i), count_, context, states[slot].get(),
                     payloads[slot].data(), space);
      if (in_graph_ == 1) states[slot]->commit(stream_);
    });
    row.encode_us = encoding.median_us;
    row.encode_slowest_us = encoding.slowest_us;
    if (in_graph_ == 1) count_misses(row, *states.front());
    states.clear();
    const auto sent = [&](int i) {
      const DeviceBuffer& payload = payloads[static_cast<std::size_t>(i % in_graph_)];
      return std::span<const std::byte>(payload.data(), payload.bytes());
    };
    row.decode_us =
        time_of(stream_, repeat_, in_graph_, [&](int i) {
          twin->decompress(stream_, sent(i), context, gradient(i), count_, space, status);
        }).median_us;
    row.add_us =
        time_of(stream_, repeat_, in_graph_, [&](int i) {
          twin->decompress_add(stream_, sent(i), context, 0.5f, gradient(i), count_, space, status);
        }).median_us;
    status.fetch(stream_);
    stream_.synchronize();
    if (!status.status().is_ok()) throw Error(status.status());
    add_floors(row, *compressor, static_cast<double>(twin->state_arrays()));
    restore();
    return row;
  }

 private:
  float* gradient(int turn) const {
    return gradients_[static_cast<std::size_t>(turn % turns_)].as<float>();
  }

  void restore() const {
    for (int t = 0; t < turns_; ++t) {
      fill_gradient<<<blocks_of_256(count_), 256, 0, stream_.get()>>>(
          gradient(t), count_, static_cast<std::uint32_t>(t + 1),
          shift_ ? kShifting[t] : Distribution{});
    }
    check_launch("fill_gradient");
  }

  void measure_copy() {
    const double us = time_of(stream_, repeat_, in_graph_, [&](int i) {
                        check(cudaMemcpyAsync(gradient(i), gradient(i + 1), count_ * sizeof(float),
                                              cudaMemcpyDeviceToDevice, stream_.get()),
                              "cudaMemcpyAsync");
                      }).median_us;
    copy_bytes_per_us_ = 8.0 * static_cast<double>(count_) / us;
    restore();
  }

  void count_misses(Row& row, const TwinState& state) const {
    row.steps = static_cast<std::uint32_t>(repeat_ + kWarmUp);
    check(cudaMemcpyAsync(&row.missed, state.hint() + kTopKMissesHint, sizeof(row.missed),
                          cudaMemcpyDeviceToHost, stream_.get()),
          "cudaMemcpyAsync");
    stream_.synchronize();
  }

  /// Adding `kept` elements here and there, when all about them is known.
  double time_of_adding(std::size_t kept) const {
    const DeviceBuffer indices(kept * sizeof(std::uint32_t)), values(kept * sizeof(float));
    check(cudaMemsetAsync(values.data(), 0, values.bytes(), stream_.get()), "cudaMemsetAsync");
    fill_indices<<<blocks_of_256(kept), 256, 0, stream_.get()>>>(indices.as<std::uint32_t>(),
                                                                 count_, kept);
    const double us = time_of(stream_, repeat_, in_graph_, [&](int i) {
                        add_at<<<blocks_of_256(kept), 256, 0, stream_.get()>>>(
                            gradient(i), indices.as<std::uint32_t>(), values.as<float>(), kept);
                      }).median_us;
    check_launch("add_at");
    return us;
  }

  void add_floors(Row& row, const Compressor& compressor, double arrays) const {
    const auto n = static_cast<double>(count_);
    const double payload_us = static_cast<double>(row.payload_bytes) / copy_bytes_per_us_;
    row.encode_floor_us = (4 * n + 8 * n * arrays) / copy_bytes_per_us_ + payload_us;
    row.decode_floor_us = 4 * n / copy_bytes_per_us_ + payload_us;
    row.add_floor_us =
        payload_us + (compressor.traits().sparse
                          ? time_of_adding(read_parameters(compressor)->keep.kept(count_))
                          : 8 * n / copy_bytes_per_us_);
  }

  std::size_t count_;
  int repeat_;
  bool shift_;
  int turns_ = 0;
  int in_graph_ = 0;
  double copy_bytes_per_us_ = 0;
  Stream stream_;
  std::vector<DeviceBuffer> gradients_;
};

void print_titles(bool shift) {
  std::printf("# %-42s %9s %5s", "spec", "encode us", "/flr");
  if (shift) std::printf(" %10s %5s %9s", "slowest us", "/flr", "missed");
  std::printf(" %9s %5s %9s %5s %8s\n", "decode us", "/flr", "add us", "/flr", "ratio");
}

void print_row(const Row& row, bool shift) {
  std::printf("%-44s %9.1f %5.2f", row.spec.c_str(), row.encode_us,
              row.encode_us / row.encode_floor_us);
  if (shift) {
    std::printf(" %10.1f %5.2f %4u / %2u", row.encode_slowest_us,
                row.encode_slowest_us / row.encode_floor_us, row.missed, row.steps);
  }
  std::printf(" %9.1f %5.2f %9.1f %5.2f %8.4f\n", row.decode_us,
              row.decode_us / row.decode_floor_us, row.add_us, row.add_us / row.add_floor_us,
              static_cast<double>(row.payload_bytes) / (4.0 * static_cast<double>(row.count)));
  std::fflush(stdout);
}

void write_json(const Options& options, const std::string& device, const std::vector<Row>& rows) {
  std::FILE* file = std::fopen(options.json.c_str(), "w");
  if (file == nullptr) throw Error(Code::System, options.json + ": cannot be written");
  std::fprintf(file,
               "{\"tool\": \"compressors_cuda\", \"device\": \"%s\", \"runtime\": \"%s\", "
               "\"shift\": %s, \"rows\": [",
               device.c_str(), runtime_version().c_str(), options.shift ? "true" : "false");
  const char* separator = "\n";
  for (const Row& r : rows) {
    std::fprintf(file,
                 "%s {\"spec\": \"%s\", \"count\": %zu, \"payload_bytes\": %zu, "
                 "\"encode_us\": %.3f, \"encode_slowest_us\": %.3f, \"encode_floor_us\": %.3f, "
                 "\"steps\": %u, \"missed\": %u, \"decode_us\": %.3f, "
                 "\"decode_floor_us\": %.3f, \"decode_add_us\": %.3f, "
                 "\"decode_add_floor_us\": %.3f}",
                 separator, r.spec.c_str(), r.count, r.payload_bytes, r.encode_us,
                 r.encode_slowest_us, r.encode_floor_us, r.steps, r.missed, r.decode_us,
                 r.decode_floor_us, r.add_us, r.add_floor_us);
    separator = ",\n";
  }
  std::fprintf(file, "\n]}\n");
  std::fclose(file);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--shift") {
      options.shift = true;
      continue;
    }
    if (i + 1 == argc) throw Error(Code::InvalidArgument, name + " lacks its value");
    const char* value = argv[++i];
    if (name == "--count") {
      options.counts.push_back(std::strtoull(value, nullptr, 10));
    } else if (name == "--spec") {
      options.specs.push_back(value);
    } else if (name == "--repeat") {
      options.repeat = std::max(1, std::atoi(value));
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw Error(Code::InvalidArgument, "unknown option " + name);
    }
  }
  if (options.counts.empty()) options.counts = {std::size_t{1} << 20, std::size_t{1} << 28};
  if (!options.specs.empty()) return options;
  options.specs = {"none",
                   "fp16",
                   "bf16",
                   "qint:bits=8",
                   "qint:bits=4",
                   "qint:bits=2",
                   "qint:bits=4,rounding=stochastic",
                   "sign",
                   "topk",
                   "randomk"};
  for (const char* spec :
       {"fp16+ef", "bf16+ef", "qint:bits=8+ef", "qint:bits=4+ef", "qint:bits=2+ef",
        "qint:bits=4,rounding=stochastic+ef", "qint:bits=4,block=128+ef", "sign+ef", "topk+ef",
        "topk:ratio=0.001+ef", "topk+ef+momentum=0.9", "randomk+ef"}) {
    options.specs.push_back(spec);
  }
  return options;
}

int run(const Options& options) {
  const auto found = devices();
  if (found.empty()) {
    std::fprintf(stderr, "no GPU\n");
    return 77;
  }
  std::vector<Row> rows;
  std::printf("# %s, CUDA %s\n", found[0].name.c_str(), runtime_version().c_str());
  for (const std::size_t count : options.counts) {
    Workbench bench(count, options.repeat, options.shift);
    std::printf("# %zu fp32 elements; a copy moves %.1f GB/s (read + written)\n", count,
                bench.copy_bytes_per_us() * 1e-3);
    print_titles(options.shift);
    for (const std::string& spec : options.specs) {
      rows.push_back(bench.measure(spec));
      print_row(rows.back(), options.shift);
    }
  }
  if (!options.json.empty()) write_json(options, found[0].name, rows);
  return 0;
}

}  // namespace
}  // namespace tersum::gpu

int main(int argc, char** argv) {
  try {
    return tersum::gpu::run(tersum::gpu::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compressors_cuda: %s\n", error.what());
    return 1;
  }
}
