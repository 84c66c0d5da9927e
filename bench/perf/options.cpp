#include "perf/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>

#include "src/config.hpp"
#include "tersum/compressor.hpp"
#include "tersum/version.hpp"

namespace tersum::perf {
namespace {

constexpr std::size_t kLargestBytes = std::size_t{1} << 40;

/// Words of the command line as they were given, before they get a meaning.
struct Words {
  std::string collective, minimum = "4", maximum = "64M", dtype = "fp32", op = "sum";
  bool check = false, no_check = false, only_in_place = false, only_out_of_place = false;
  std::string device = "host", compare;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Code::InvalidArgument, what);
}

std::size_t size_of(const std::string& option, const std::string& text) {
  std::uint64_t bytes = 0;
  if (!parse_bytes(text, bytes) || bytes > kLargestBytes) {
    refuse(option + " " + text + ": give bytes, such as 4096, 64K or 1M, up to 1024G");
  }
  return bytes;
}

template <class T>
T named(const std::string& option, const std::string& text, int count,
        const std::map<std::string, T>& others) {
  std::string names;
  for (int value = 0; value < count; ++value) {
    const auto candidate = static_cast<T>(value);
    if (to_string(candidate) == text) return candidate;
    names += (names.empty() ? "" : ", ") + std::string(to_string(candidate));
  }
  const auto other = others.find(text);
  if (other != others.end()) return other->second;
  refuse(option + " " + text + ": there are " + names);
}

void add_options(CLI::App& app, Options& options, Words& words) {
  app.add_option("collective", words.collective, collective_names())->required();
  app.add_option("-n,--ranks", options.ranks, "start that many ranks on this host")
      ->check(CLI::Range(1, 4096));
  app.add_option("-b,--min", words.minimum, "smallest size in bytes (K, M, G, T)")
      ->capture_default_str();
  app.add_option("-e,--max", words.maximum, "largest size")->capture_default_str();
  app.add_option("-f,--factor", options.factor, "from one size to the next")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("-i,--iterations", options.iterations, "timed calls of each size")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("-w,--warmup", options.warmup, "calls of each size before that")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("-d,--dtype", words.dtype, "element type: fp32, fp16, bf16, int32, ...")
      ->capture_default_str();
  app.add_option("-o,--op", words.op, "sum, average, min, max or product")->capture_default_str();
  app.add_flag("--check", words.check, "look at every result (the default)");
  app.add_flag("--no-check", words.no_check, "measure only")->excludes("--check");
  app.add_flag("--in-place", words.only_in_place, "only in place");
  app.add_flag("--out-of-place", words.only_out_of_place, "only out of place")
      ->excludes("--in-place");
  app.add_option("-r,--root", options.root, "of broadcast and reduce")->capture_default_str();
  app.add_option("--algorithm", options.algorithm,
                 "of all-reduce: auto, direct, oneshot, twoshot, ring, halving or doubling")
      ->check(
          CLI::IsMember({"auto", "direct", "oneshot", "twoshot", "ring", "halving", "doubling"}));
  app.add_option("--transport", options.transport, "auto, tcp or shm")
      ->check(CLI::IsMember({"auto", "tcp", "shm"}));
  app.add_option("--device", words.device, "where the tensors are: host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  app.add_flag("--graph", options.graph, "with --device cuda: replay a CUDA graph of the calls");
  app.add_option("--compare", words.compare,
                 "with --device cuda: nccl, on the same buffers and in turn, checked as well")
      ->check(CLI::IsMember({"nccl"}));
  app.add_option("--nccl-library", options.nccl_library,
                 "file of NCCL, such as libnccl.so.2 (default: searched for)");
  app.add_option("--compressor", options.compressor,
                 "all-reduce through a gradient exchange with this compressor (a spec)");
  app.add_option("--json", options.json, "file for the results as JSON");
  app.add_option("--timeout", options.timeout_ms, "milliseconds for one operation")
      ->check(CLI::Range(1, 86'400'000));
}

void check_device(const Words& words, const Options& options) {
  switch (options.collective->collective) {
    case Collective::AllGatherV:
    case Collective::AllToAllV:
    case Collective::SendReceive:
    case Collective::Barrier:
      refuse("--device cuda does not go with " + words.collective);
    default:
      break;
  }
  if (options.graph && !options.compressor.empty())
    refuse("--graph does not go with --compressor: an exchange has a step of its own each time");
  if (!options.algorithm.empty()) refuse("--algorithm belongs to host memory");
}

void check_compare(const Words& words, const Options& options) {
  if (!options.device) refuse("--compare " + words.compare + " needs --device cuda");
  if (!options.compressor.empty()) {
    refuse("--compare does not go with --compressor: NCCL has no compressed all-reduce");
  }
  switch (options.collective->collective) {
    case Collective::AllGatherV:
    case Collective::AllToAllV:
    case Collective::Barrier:
      refuse("--compare nccl: NCCL has no " + std::string(options.collective->name));
    default:
      break;
  }
  if (options.dtype == DType::Int16 || options.dtype == DType::Bool) {
    refuse("--compare nccl: NCCL has no --dtype " + words.dtype);
  }
}

/// What the words mean, and whether they go together.
void interpret(const Words& words, Options& options) {
  options.collective = &find_collective(words.collective);
  options.min_bytes = size_of("--min", words.minimum);
  options.max_bytes = size_of("--max", words.maximum);
  if (options.min_bytes > options.max_bytes) {
    refuse("--min " + words.minimum + " is more than --max " + words.maximum);
  }
  options.dtype = named<DType>("--dtype", words.dtype, kDTypeCount,
                               {{"float", DType::Float32},
                                {"double", DType::Float64},
                                {"half", DType::Float16},
                                {"bfloat16", DType::BFloat16}});
  options.op = named<ReduceOp>("--op", words.op, kReduceOpCount,
                               {{"avg", ReduceOp::Average}, {"prod", ReduceOp::Product}});
  if (options.collective->reduces && options.dtype == DType::Bool &&
      options.op == ReduceOp::Average) {
    refuse("--op average has no meaning for --dtype bool: use max (any) or min (all)");
  }
  options.check = !words.no_check;
  const std::string name(options.collective->name);
  if (words.only_in_place && !options.collective->in_place) refuse(name + " is never in place");
  if (words.only_out_of_place && !options.collective->out_of_place) {
    refuse(name + " is always in place");
  }
  options.out_of_place = options.collective->out_of_place && !words.only_in_place;
  options.in_place = options.collective->in_place && !words.only_out_of_place;
  if (options.root < 0) refuse("--root " + std::to_string(options.root) + " is negative");
  const bool all_reduce = options.collective->collective == Collective::AllReduce;
  if (!options.algorithm.empty() && !all_reduce) refuse("--algorithm belongs to allreduce");
  options.device = words.device == "cuda";
  if (options.graph && !options.device) refuse("--graph needs --device cuda");
  options.compare_nccl = !words.compare.empty();
  if (options.compare_nccl) check_compare(words, options);
  if (!options.nccl_library.empty() && !options.compare_nccl) {
    refuse("--nccl-library needs --compare nccl");
  }
  if (options.device) check_device(words, options);
  if (options.compressor.empty()) return;
  if (!all_reduce) refuse("--compressor belongs to allreduce");
  if (!is_floating(options.dtype)) {
    refuse("--compressor needs a floating --dtype, not " + words.dtype);
  }
  if (options.op != ReduceOp::Sum && options.op != ReduceOp::Average) {
    refuse("--compressor goes with --op sum or average, not " + words.op);
  }
  if (words.only_out_of_place) refuse("a gradient exchange is always in place");
  options.out_of_place = false;
  const auto compressor = make_compressor(options.compressor);  // says what is wrong with it
  if (options.dtype == DType::Float64 && compressor->traits().name != "none") {
    refuse("--compressor " + options.compressor + " works on --dtype fp32, fp16 and bf16, not " +
           words.dtype);
  }
}

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::vector<std::size_t> Options::sizes() const {
  if (collective->collective == Collective::Barrier) return {0};
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = min_bytes; bytes <= max_bytes; bytes *= factor) {
    sizes.push_back(bytes);
    if (bytes == 0) bytes = 1;  // 0, then factor, factor^2, ...
  }
  return sizes;
}

Config Options::apply(Config config) const {
  if (!algorithm.empty()) config.algorithm = algorithm;
  if (!transport.empty()) config.transport = transport;
  if (timeout_ms > 0) config.timeout = std::chrono::milliseconds(timeout_ms);
  return config;
}

ParsedOptions parse_options(const std::vector<std::string>& arguments) {
  ParsedOptions parsed;
  Words words;
  CLI::App app("Measures a collective between the ranks of a job, and checks its results.",
               "tersum-perf");
  app.footer(
      "Time is the median over the calls of the slowest rank's time. algbw = size / time; busbw =\n"
      "algbw * 2(n-1)/n for allreduce, (n-1)/n for reducescatter, allgather and alltoall, 1 for\n"
      "others. Sizes are whole buffers (all ranks' parts together). Start it with -n, or under\n"
      "tersum-run, mpirun, torchrun or srun. Exit code: 0, 1 if a result is wrong or a call\n"
      "fails, 2 for a wrong command line.");
  app.set_version_flag("--version", std::string("tersum-perf ") + version());
  add_options(app, parsed.options, words);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    interpret(words, parsed.options);
  } catch (const CLI::ParseError& error) {
    std::ostringstream output, complaint;
    parsed.exit_code = app.exit(error, output, complaint) == 0 ? 0 : kUsageExitCode;
    parsed.text = parsed.exit_code == 0
                      ? output.str()
                      : "tersum-perf: " + one_line(error.what()) + "; --help lists all options\n";
  } catch (const Error& error) {
    parsed.exit_code = kUsageExitCode;
    parsed.text = "tersum-perf: " + one_line(error.status().message()) + "\n";
  }
  return parsed;
}

}  // namespace tersum::perf
