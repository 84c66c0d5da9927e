// What the benchmarks of collectives between GPUs share: words of a command line, and one process
// for each rank.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/collective_support.hpp"
#include "cuda/error.hpp"
#include "cuda/nccl_loader.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {

[[noreturn]] inline void refuse(const std::string& what) {
  throw Error(Code::InvalidArgument, what);
}

/// "64K" is 65536; also M and G. Error InvalidArgument for anything else.
inline std::size_t parse_bytes(const std::string& text) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string unit(rest, end);
  if (error != std::errc{} || unit.size() > 1 || value > (std::size_t{1} << 32))
    refuse("'" + text + "' is no size");
  if (unit.empty()) return value;
  const auto power = std::string("KMG").find(unit);
  if (power == std::string::npos) refuse("'" + text + "' is no size: K, M and G are units");
  return value << (10 * (power + 1));
}

/// A number up to a million. Error InvalidArgument for anything else.
inline int parse_count(const std::string& text) {
  const std::size_t value = parse_bytes(text);
  if (value > 1'000'000) refuse("'" + text + "' is more than a million");
  return static_cast<int>(value);
}

/// True. Error InvalidArgument unless `rival` is what we compare with.
inline bool parse_rival(const std::string& rival) {
  if (rival != "nccl") refuse("nothing to compare with is called " + rival + ": nccl is");
  return true;
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// NCCL between the same ranks. `library`: its file; empty: searched for. Collective.
inline std::unique_ptr<NcclCommunicator> join_nccl(const RankRole& role,
                                                   const std::string& library) {
  const auto nccl = NcclLibrary::load(library);
  NcclId id{};
  if (role.rank == 0) id = nccl->new_id();
  const auto ids = role.all_gather(std::as_bytes(std::span(&id, 1)));
  std::memcpy(&id, ids[0].data(), sizeof(id));
  return std::make_unique<NcclCommunicator>(nccl, role.rank, role.size, id);
}

/// Runs Bench(options, role).run() in options.ranks processes. Returns the exit status.
template <class Bench, class Parse>
int bench_main(int argc, char** argv, const Parse& parse) {
  try {
    const auto options = parse(argc, argv);
    if (is_rank_process()) {
      Bench bench(options, rank_process_role());
      bench.run();
      return 0;
    }
    if (!has_device()) {
      std::puts("no GPU: nothing measured");
      return 0;
    }
    ProcessPlan plan;
    plan.size = options.ranks;
    plan.arguments.assign(argv + 1, argv + argc);
    plan.limit = std::chrono::minutes(9);
    const ProcessResults results = run_processes(plan);
    if (results.all_succeeded()) return 0;
    std::fprintf(stderr, "ranks ended with%s\n", results.to_string().c_str());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::fflush(stdout);
    if (is_rank_process()) std::_Exit(1);  // the others' kernels may hold up an orderly end
    return 2;
  }
}

}  // namespace tersum::gpu
