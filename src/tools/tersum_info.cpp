// tersum-info: what this build is, what this machine offers, and every setting with its value and
// origin. One document is gathered and then printed as text, JSON or Markdown.
#include <hwy/targets.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#if TERSUM_BUILD_CUDA
#include "cuda/device.hpp"
#endif
#include "src/config.hpp"
#include "src/tools/standard_streams.hpp"
#include "tersum/compressor.hpp"
#include "tersum/config.hpp"
#include "tersum/version.hpp"
#include "transport/ucx_transport.hpp"

namespace {

using nlohmann::ordered_json;
using tersum::Aggregation;
using tersum::Bias;

ordered_json build_facts() {
  return {{"version", tersum::version()},        {"compiler", TERSUM_BUILD_COMPILER},
          {"type", TERSUM_BUILD_TYPE},           {"flags", TERSUM_BUILD_FLAGS},
          {"sanitizer", TERSUM_BUILD_SANITIZER}, {"cuda", TERSUM_BUILD_CUDA != 0}};
}

ordered_json cpu_facts() {
  ordered_json targets = ordered_json::array();
  // One bit a target; the lowest is the best.
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    targets.push_back(hwy::TargetName(rest & -rest));
  }
  return {{"cores", std::thread::hardware_concurrency()}, {"simd_targets", targets}};
}

ordered_json interface_facts() {
  ordered_json interfaces = ordered_json::array();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char address[NI_MAXHOST];
    if (getnameinfo(entry->ifa_addr, length, address, sizeof address, nullptr, 0, NI_NUMERICHOST) !=
        0) {
      continue;
    }
    interfaces.push_back({{"name", entry->ifa_name},
                          {"address", address},
                          {"up", (entry->ifa_flags & IFF_UP) != 0},
                          {"loopback", (entry->ifa_flags & IFF_LOOPBACK) != 0}});
  }
  freeifaddrs(list);
  return interfaces;
}

/// GPUs, and what stands in the way of using them.
ordered_json device_facts() {
  ordered_json devices = ordered_json::array();
#if TERSUM_BUILD_CUDA
  const std::string driver = tersum::gpu::driver_version();
  try {
    for (const tersum::gpu::Device& device : tersum::gpu::devices()) {
      const std::string compute = std::to_string(device.major) + "." + std::to_string(device.minor);
      devices.push_back({{"index", device.index},
                         {"name", device.name},
                         {"memory_bytes", device.memory_bytes},
                         {"compute", compute},
                         {"multiprocessors", device.multiprocessors},
                         {"peers", device.peers}});
    }
  } catch (const tersum::Error& error) {
    return {{"note", error.what()}, {"list", devices}};
  }
  return {{"note", "CUDA " + tersum::gpu::runtime_version() + ", " +
                       (driver.empty() ? "no driver" : "driver for " + driver)},
          {"list", devices}};
#else
  return {{"note", "this build is without CUDA"}, {"list", devices}};
#endif
}

/// UCX, and which of its transports ranks with these settings would use.
ordered_json ucx_facts(const tersum::Config& config) {
  ordered_json facts = {{"version", tersum::transport::ucx_version()},
                        {"transports", tersum::transport::ucx_transports()}};
  try {
    const auto lanes = tersum::transport::ucx_lanes(
        {config.transport, config.interface, {}, config.device_staging == "ucx"});
    // If TERSUM_DEVICE_STAGING lets them.
    facts["device_memory"] =
        tersum::transport::ucx_lanes({config.transport, config.interface, {}, true}).device_memory;
    facts["inside_host"] = lanes.inside_host;
    facts["between_hosts"] = lanes.between_hosts;
  } catch (const tersum::Error& error) {
    facts["note"] = error.what();
  }
  return facts;
}

/// How tensors in GPU memory travel, as src/device chooses it.
ordered_json device_routes(const tersum::Config& config, const ordered_json& ucx) {
  const std::string network = ucx.value("between_hosts", "");
  const bool as_it_is = config.device_staging == "ucx";
  std::string between = as_it_is ? "given to UCX, over " : "through pinned memory, over ";
  between += network.empty() ? "no network" : network;
  if (as_it_is && !ucx.value("device_memory", false)) between = "not: this UCX is without CUDA";
  return {{"inside_host", "peer memory, where GPUs are peers; else as between hosts"},
          {"between_hosts", between}};
}

const char* name_of(Bias bias) {
  switch (bias) {
    case Bias::Unbiased:
      return "unbiased";
    case Bias::Contractive:
      return "contractive";
    case Bias::Neither:
      return "neither";
  }
  return "unknown";
}

const char* name_of(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::Linear:
      return "linear";
    case Aggregation::Recompress:
      return "recompress";
    case Aggregation::SparseMerge:
      return "sparse-merge";
  }
  return "unknown";
}

ordered_json compressor_facts() {
  ordered_json compressors = ordered_json::array();
  for (const tersum::CompressorEntry& entry : tersum::compressor_entries()) {
    ordered_json facts = {{"name", entry.name}, {"wire_id", entry.wire_id}, {"help", entry.help}};
    try {
      const auto compressor = tersum::make_compressor(entry.name);
      const tersum::CompressorTraits& traits = compressor->traits();
      facts["default"] = compressor->spec();
      facts["bias"] = name_of(traits.bias);
      facts["aggregation"] = name_of(traits.aggregation);
      facts["randomised"] = traits.randomised;
      facts["sparse"] = traits.sparse;
      facts["fixed_size"] = traits.fixed_size;
      facts["block_count"] = traits.block_count;
    } catch (const tersum::Error& error) {  // a method that has no defaults for its parameters
      facts["note"] = error.what();
    }
    compressors.push_back(std::move(facts));
  }
  return compressors;
}

ordered_json setting_facts(const tersum::Config& config,
                           const tersum::SettingsEnvironment& environment) {
  ordered_json settings = ordered_json::array();
  for (const tersum::Setting& setting : tersum::settings()) {
    const tersum::SettingValue value = tersum::setting_value(config, setting.variable, environment);
    settings.push_back({{"variable", setting.variable},
                        {"value", value.value},
                        {"origin", value.origin},
                        {"type", setting.type},
                        {"allowed", setting.allowed},
                        {"default", setting.default_value},
                        {"must_agree", setting.must_agree},
                        {"help", setting.help}});
  }
  return settings;
}

ordered_json gather(const tersum::Config& config, const tersum::SettingsEnvironment& environment,
                    const std::vector<std::string>& problems) {
  const ordered_json ucx = ucx_facts(config);
  ordered_json devices = device_facts();
  devices["routes"] = device_routes(config, ucx);
  return {{"build", build_facts()},
          {"cpu", cpu_facts()},
          {"ucx", ucx},
          {"devices", devices},
          {"interfaces", interface_facts()},
          {"compressors", compressor_facts()},
          {"settings", setting_facts(config, environment)},
          {"problems", problems}};
}

std::string text_of(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const ordered_json& item : value) text += (text.empty() ? "" : " ") + text_of(item);
  return text.empty() ? "none" : text;
}

void print_section(const char* title, const ordered_json& facts) {
  std::printf("%s\n", title);
  for (const auto& [name, value] : facts.items()) {
    const std::string text = text_of(value);
    std::printf("  %-14s %s\n", name.c_str(), text.empty() ? "none" : text.c_str());
  }
}

void print_text(const ordered_json& info) {
  print_section("Build", info["build"]);
  print_section("CPU", info["cpu"]);
  print_section("UCX", info["ucx"]);
  std::printf("Devices (%s)\n", text_of(info["devices"]["note"]).c_str());
  for (const ordered_json& d : info["devices"]["list"]) {
    std::printf("  %-14s %s, %s bytes, compute %s, %s multiprocessors, peers: %s\n",
                text_of(d["index"]).c_str(), text_of(d["name"]).c_str(),
                text_of(d["memory_bytes"]).c_str(), text_of(d["compute"]).c_str(),
                text_of(d["multiprocessors"]).c_str(), text_of(d["peers"]).c_str());
  }
  if (info["devices"]["list"].empty())
    std::printf("  none\n");
  else
    print_section("Routes of device memory", info["devices"]["routes"]);
  std::printf("Network interfaces\n");
  for (const ordered_json& i : info["interfaces"]) {
    std::printf("  %-14s %s%s\n", text_of(i["name"]).c_str(), text_of(i["address"]).c_str(),
                i["up"].get<bool>() ? "" : " (down)");
  }
  std::printf("Compressors\n");
  for (const ordered_json& c : info["compressors"]) {
    std::printf("  %-14s %s\n", text_of(c["name"]).c_str(), text_of(c["help"]).c_str());
    if (!c.contains("bias")) continue;
    std::printf("  %-14s default %s; bias: %s; aggregation: %s%s\n", "",
                text_of(c["default"]).c_str(), text_of(c["bias"]).c_str(),
                text_of(c["aggregation"]).c_str(),
                c["randomised"].get<bool>() ? "; randomised" : "");
  }
  std::printf("Settings (must agree on all ranks: *)\n");
  for (const ordered_json& s : info["settings"]) {
    std::printf(
        "%s %s=%s  [%s]\n      %s. Allowed: %s, %s\n", s["must_agree"].get<bool>() ? " *" : "  ",
        text_of(s["variable"]).c_str(), text_of(s["value"]).c_str(), text_of(s["origin"]).c_str(),
        text_of(s["help"]).c_str(), text_of(s["type"]).c_str(), text_of(s["allowed"]).c_str());
  }
}

/// Text for a cell of a Markdown table.
std::string cell(const ordered_json& value) {
  std::string text;
  for (const char c : text_of(value)) {
    if (c == '|' || c == '<' || c == '*' || c == '_') text += '\\';
    text += c;
  }
  return text;
}

std::string code(const ordered_json& value) {
  const std::string text = text_of(value);
  return text.empty() ? "(empty)" : "`" + text + "`";
}

void print_markdown(const ordered_json& info) {
  std::printf("<!-- settings:begin -->\n");
  std::printf("| variable | default | allowed | must agree | meaning |\n|---|---|---|---|---|\n");
  for (const ordered_json& s : info["settings"]) {
    std::printf("| `%s` | %s | %s: %s | %s | %s |\n", text_of(s["variable"]).c_str(),
                code(s["default"]).c_str(), cell(s["type"]).c_str(), cell(s["allowed"]).c_str(),
                text_of(s["must_agree"]).c_str(), cell(s["help"]).c_str());
  }
  std::printf("<!-- settings:end -->\n\n<!-- compressors:begin -->\n");
  std::printf("| method | spec with defaults | bias | exchange | random | what it does |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const ordered_json& c : info["compressors"]) {
    std::printf("| `%s` | %s | %s | %s | %s | %s |\n", text_of(c["name"]).c_str(),
                code(c.value("default", "")).c_str(), cell(c.value("bias", "")).c_str(),
                cell(c.value("aggregation", "")).c_str(),
                c.value("randomised", false) ? "yes" : "no", cell(c["help"]).c_str());
  }
  std::printf("<!-- compressors:end -->\n");
}

/// The exit code, but for output that could not be written.
int run(int argc, char** argv) {
  bool as_json = false;
  bool as_markdown = false;
  CLI::App app("Shows this build of Tersum, what the machine offers, and every setting.");
  auto* json_flag = app.add_flag("--json", as_json, "Print one JSON document");
  app.add_flag("--markdown", as_markdown, "Print the tables of settings and compressors")
      ->excludes(json_flag);
  app.footer(
      "Exit status: 0; 1 if a TERSUM_* variable is wrong (everything else is still shown) or the\n"
      "output cannot be written.");
  CLI11_PARSE(app, argc, argv);
  try {
    const tersum::SettingsEnvironment environment = tersum::read_settings_environment();
    tersum::Config config;
    const std::vector<std::string> problems = tersum::apply_environment(environment, config);
    const ordered_json info = gather(config, environment, problems);
    if (as_json) {
      std::printf("%s\n", info.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
    } else if (as_markdown) {
      print_markdown(info);
    } else {
      print_text(info);
    }
    std::fflush(stdout);
    for (const std::string& problem : problems) {
      std::fprintf(stderr, "tersum-info: %s\n", problem.c_str());
    }
    return problems.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tersum-info: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  tersum::tools::open_standard_streams();
  return tersum::tools::exit_code_after_output("tersum-info", run(argc, argv));
}
