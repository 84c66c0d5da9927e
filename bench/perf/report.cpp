#include "perf/report.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "perf/device.hpp"
#include "tersum/version.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum::perf {
namespace {

using nlohmann::ordered_json;

double gigabytes_per_second(std::size_t bytes, double us) {
  return us > 0 ? static_cast<double>(bytes) / us / 1e3 : 0;
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

/// Four significant digits, at most seven characters.
std::string short_number(double value) {
  if (value >= 1e6) return formatted("%7.1e", value);
  if (value >= 1000) return formatted("%7.0f", value);
  if (value >= 100) return formatted("%7.1f", value);
  return formatted("%7.2f", value);
}

/// Wrong elements; those of a size that was not checked are not known.
std::string count_or_none(std::int64_t wrong) {
  return wrong < 0 ? "N/A" : std::to_string(wrong);
}

std::string first_line(const char* file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line.empty() ? "unknown" : line;
}

}  // namespace

std::string Environment::placement() const {
  std::map<std::string, int> counts;
  for (const std::string& host : hosts) ++counts[host];
  std::string text;
  for (const auto& [host, count] : counts) {
    text += (text.empty() ? "" : ", ") + host + ": " + std::to_string(count) +
            (count == 1 ? " rank" : " ranks");
  }
  return text;
}

bool Environment::one_host() const {
  return std::all_of(hosts.begin(), hosts.end(),
                     [&](const std::string& host) { return host == hosts.front(); });
}

Environment gather_environment(Communicator& communicator) {
  utsname names{};
  ::uname(&names);
  Environment environment;
  environment.ranks = communicator.size();
  environment.transport = communicator.config().transport;
  environment.algorithm = communicator.config().algorithm;
  environment.ucx = transport::ucx_version();
  environment.kernel = std::string(names.sysname) + " " + names.release;
  environment.congestion_control = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  environment.cores = std::thread::hardware_concurrency();

  using Name = std::array<char, 128>;
  Name mine{};
  std::strncpy(mine.data(), names.nodename, mine.size() - 1);
  std::vector<Name> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(mine.data(), all.data(), mine.size(), DType::Int8).wait();
  for (const Name& name : all) environment.hosts.emplace_back(name.data());
  return environment;
}

Report::Report(const Options& options, const Environment& environment, bool prints)
    : options_(options), environment_(environment), prints_(prints) {
  document_ = {{"tool", "tersum-perf"},
               {"version", version()},
               {"collective", options.collective->name},
               {"ranks", environment.ranks},
               {"hosts", environment.hosts},
               {"cores", environment.cores},
               {"kernel", environment.kernel},
               {"transport", environment.transport},
               {"algorithm", environment.algorithm},
               {"ucx", environment.ucx},
               {"tcp_congestion_control", environment.congestion_control},
               {"dtype", to_string(options.dtype)},
               {"op", options.collective->reduces ? to_string(options.op) : "none"},
               {"root", options.collective->rooted ? options.root : -1},
               {"iterations", options.iterations},
               {"warmup", options.warmup},
               {"checked", options.check},
               {"memory", options.device ? "cuda" : "host"},
               {"device", options.device ? device_name() : ""},
               {"graph", options.graph},
               {"compressor", options.compressor},
               {"results", ordered_json::array()}};
  if (prints_ && !options.json.empty() && !std::ofstream(options.json)) {
    throw Error(Code::System, "--json " + options.json + ": cannot write that file (" +
                                  std::strerror(errno) + ")");
  }
}

void Report::print(const char* format, ...) {
  if (!prints_) return;
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::fflush(stdout);
}

void Report::header(const Peer& nccl) {
  const bool fixed = !options_.algorithm.empty() || environment_.algorithm != "auto";
  print("# tersum-perf %s: %d %s, tersum %s, UCX %s\n", options_.collective->name.data(),
        environment_.ranks, environment_.ranks == 1 ? "rank" : "ranks", version(),
        environment_.ucx.c_str());
  print("# %s; %u cores on the host of rank 0, %s\n", environment_.placement().c_str(),
        environment_.cores, environment_.kernel.c_str());
  print("# transport %s, TCP congestion control %s%s%s\n", environment_.transport.c_str(),
        environment_.congestion_control.c_str(), fixed ? ", algorithm " : "",
        fixed ? environment_.algorithm.c_str() : "");
  print("# iterations %d, warm-up %d, results %s; time: median of the slowest rank's\n",
        options_.iterations, options_.warmup, options_.check ? "checked" : "not checked");
  if (options_.device) {
    print("# %s; calls follow each other in a stream%s, timed in batches\n", device_name().c_str(),
          options_.graph ? " as a CUDA graph" : "");
  }
  if (options_.compare_nccl) {
    print("# against NCCL %s (%s), in turn on the same buffers; ratio: its time over ours\n",
          nccl.version.c_str(), nccl.library.c_str());
    document_["nccl"] = {{"version", nccl.version}, {"library", nccl.library}};
  }
  if (!options_.compressor.empty()) {
    print("# compressor %s; bandwidths are those of an uncompressed all-reduce in this time\n",
          options_.compressor.c_str());
  }
  print("#\n");
  print_titles();
}

void Report::print_titles() {
  const char* start = "#       size         count    type    redop   root";
  const char* units = "#        (B)    (elements)                        ";
  if (!options_.compressor.empty()) {
    print("%s     time eq.algbw eq.busbw  #wrong      wire    ratio    rel.L2   max.abs\n", start);
    print("%s     (us)   (GB/s)   (GB/s)          (B/rank)                               \n",
          units);
    return;
  }
  const bool compare = options_.compare_nccl;
  const char* columns = compare ? "     time   algbw   busbw #wrong    NCCL   ratio #wrong"
                                : "     time   algbw   busbw #wrong";
  const char* column_units = compare ? "     (us)  (GB/s)  (GB/s)           (us)               "
                                     : "     (us)  (GB/s)  (GB/s)       ";
  const int width = static_cast<int>(std::strlen(columns));
  print("#%49s%*s%*s\n", "", -width, "             out-of-place", -width,
        "               in-place");
  print("%s%s%s\n", start, columns, columns);
  print("%s%s%s\n", units, column_units, column_units);
}

std::string Report::row_start(std::size_t size_bytes, std::size_t count) const {
  const bool reduces = options_.collective->reduces, rooted = options_.collective->rooted;
  char text[128];
  std::snprintf(text, sizeof(text), "%12zu  %12zu  %6s  %7s  %5d", size_bytes, count,
                to_string(options_.dtype).data(), reduces ? to_string(options_.op).data() : "none",
                rooted ? options_.root : -1);
  return text;
}

ordered_json Report::timing_json(std::size_t size_bytes, const Timing& timing, const char* prefix) {
  const double algorithm = gigabytes_per_second(size_bytes, timing.median_us);
  const double bus = algorithm * bus_factor(options_.collective->collective, environment_.ranks);
  bus_sum_ += bus;
  ++bus_count_;
  return {{"time_us", timing.median_us},
          {"min_us", timing.min_us},
          {"p99_us", timing.p99_us},
          {std::string(prefix) + "algbw_gb_per_s", algorithm},
          {std::string(prefix) + "busbw_gb_per_s", bus}};
}

ordered_json Report::add_measurement(const Row& row,
                                     const std::optional<Measurement>& measurement) {
  if (!measurement) {
    print("  %7s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
    if (options_.compare_nccl) print(" %7s %7s %6s", "N/A", "N/A", "N/A");
    return nullptr;
  }
  ordered_json json = timing_json(row.size_bytes, measurement->timing, "");
  json["wire_bytes_per_rank"] = measurement->wire_bytes;
  json["wrong"] = options_.check ? ordered_json(measurement->wrong) : ordered_json(nullptr);
  wrong_ += std::max<std::int64_t>(0, measurement->wrong);
  print("  %s %s %s %6s", short_number(measurement->timing.median_us).c_str(),
        short_number(json["algbw_gb_per_s"]).c_str(), short_number(json["busbw_gb_per_s"]).c_str(),
        count_or_none(measurement->wrong).c_str());
  if (measurement->nccl) add_comparison(*measurement, json);
  return json;
}

void Report::add_comparison(const Measurement& measurement, ordered_json& json) {
  const Comparison& nccl = *measurement.nccl;
  const double ratio = nccl.timing.median_us / measurement.timing.median_us;
  ratios_.push_back(ratio);
  wrong_ += std::max<std::int64_t>(0, nccl.wrong);
  json["nccl"] = {{"time_us", nccl.timing.median_us},
                  {"min_us", nccl.timing.min_us},
                  {"p99_us", nccl.timing.p99_us},
                  {"wrong", options_.check ? ordered_json(nccl.wrong) : ordered_json(nullptr)},
                  {"ratio", ratio}};
  print(" %s %s %6s", short_number(nccl.timing.median_us).c_str(), short_number(ratio).c_str(),
        count_or_none(nccl.wrong).c_str());
}

void Report::add(const Row& row) {
  print("%s", row_start(row.size_bytes, row.count).c_str());
  ordered_json out_of_place = add_measurement(row, row.out_of_place);
  ordered_json in_place = add_measurement(row, row.in_place);
  print("\n");
  document_["results"].push_back({{"size_bytes", row.size_bytes},
                                  {"count", row.count},
                                  {"out_of_place", std::move(out_of_place)},
                                  {"in_place", std::move(in_place)}});
}

void Report::add(std::size_t elements, const CompressedResult& result) {
  const std::size_t bytes = elements * element_bytes(options_.dtype);
  ordered_json json = {{"size_bytes", bytes}, {"count", elements}};
  json.update(timing_json(bytes, result.timing, "equivalent_"));
  json["wire_bytes_per_rank"] = result.wire_bytes;
  json["ratio"] = result.ratio;
  json["relative_l2_error"] = options_.check ? ordered_json(result.relative_l2_error) : nullptr;
  json["max_abs_error"] = options_.check ? ordered_json(result.max_abs_error) : nullptr;
  json["wrong"] = options_.check ? ordered_json(result.wrong) : nullptr;
  wrong_ += result.wrong;
  const auto checked = [&](const std::string& text) { return options_.check ? text : "N/A"; };
  print("%s  %s  %s  %s %7s %9.0f %8.2f %9s %9s\n", row_start(bytes, elements).c_str(),
        short_number(result.timing.median_us).c_str(),
        short_number(json["equivalent_algbw_gb_per_s"]).c_str(),
        short_number(json["equivalent_busbw_gb_per_s"]).c_str(),
        checked(std::to_string(result.wrong)).c_str(), result.wire_bytes, result.ratio,
        checked(formatted("%.2e", result.relative_l2_error)).c_str(),
        checked(formatted("%.2e", result.max_abs_error)).c_str());
  document_["results"].push_back(std::move(json));
}

bool Report::finish() {
  const double average = bus_count_ > 0 ? bus_sum_ / bus_count_ : 0;
  print("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong_),
        wrong_ == 0 ? "OK" : "FAILED");
  print("# Avg %sbus bandwidth : %g\n#\n", options_.compressor.empty() ? "" : "equivalent ",
        average);
  if (!ratios_.empty()) {
    std::sort(ratios_.begin(), ratios_.end());
    print("# NCCL's time over ours: least %.2f, median %.2f\n#\n", ratios_.front(),
          ratios_[ratios_.size() / 2]);
  }
  if (prints_ && !options_.json.empty()) {
    document_["out_of_bounds_values"] = wrong_;
    document_["average_busbw_gb_per_s"] = average;
    std::ofstream file(options_.json);
    file << document_.dump(2) << '\n';
    if (!file.flush()) throw Error(Code::System, "--json " + options_.json + ": cannot write it");
  }
  return wrong_ == 0;
}

}  // namespace tersum::perf
