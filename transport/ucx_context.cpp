// Configuration of UCX. Everything goes through ucp_config_modify() and never through the
// environment, which belongs to the user; what the user has set there wins unless an option of ours
// says the same thing more plainly.
#include "transport/ucx_context.hpp"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>

// UCX's process-wide options and signal handlers have no public setter. These two functions are
// exported by every version from 1.13 to 1.22, but their headers are not always installed; weak, so
// that a library without them still loads.
extern "C" {
[[gnu::weak]] ucs_status_t ucs_global_opts_set_value(const char* name, const char* value);
[[gnu::weak]] void ucs_debug_disable_signals(void);
}

namespace tersum::transport {

namespace {

bool user_has_set(std::string_view key) {
  return std::getenv(("UCX_" + std::string(key)).c_str()) != nullptr;
}

void set_global(const char* key, const char* value) {
  if (ucs_global_opts_set_value == nullptr || user_has_set(key)) return;
  // Not every version has every key; then its default has to do.
  (void)ucs_global_opts_set_value(key, value);
}

/// True if a crash would be handled by UCX, as its releases before 1.20 arrange when they load.
bool ucx_has_taken_signals() {
  struct sigaction action {};
  Dl_info where{};
  if (sigaction(SIGSEGV, nullptr, &action) != 0) return false;
  const auto handler = reinterpret_cast<void*>(action.sa_handler);
  return dladdr(handler, &where) != 0 && where.dli_fname != nullptr &&
         std::string_view(where.dli_fname).find("libucs") != std::string_view::npos;
}

/// Once per process: a library must not write to the user's terminal when a peer dies, nor take
/// over the signals of its process.
void quieten() {
  static std::once_flag once;
  std::call_once(once, [] {
    set_global("LOG_LEVEL", "fatal");
    set_global("WARN_UNUSED_ENV_VARS", "n");
    set_global("MEMTYPE_CACHE", "n");  // memory types are passed, not guessed
    if (!user_has_set("HANDLE_ERRORS") && !user_has_set("ERROR_SIGNALS") &&
        ucs_debug_disable_signals != nullptr && ucx_has_taken_signals()) {
      ucs_debug_disable_signals();
    }
  });
}

/// The interface that the default route leaves by; empty if there is none.
std::string default_route_interface() {
  std::ifstream routes("/proc/net/route");
  std::string line;
  std::getline(routes, line);  // headings
  while (std::getline(routes, line)) {
    std::istringstream fields(line);
    std::string name;
    std::string destination;
    fields >> name >> destination;
    if (destination == "00000000") return name;
  }
  return {};
}

/// One interface for UCX. With several (the loopback among them) versions before 1.18 may pick a
/// pair that cannot reach each other. Empty: let UCX choose.
std::string choose_interface() {
  std::string route = default_route_interface();
  if (!route.empty()) return route;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::string loopback;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_RUNNING) == 0) continue;
    if ((entry->ifa_flags & IFF_LOOPBACK) == 0) return entry->ifa_name;
    loopback = entry->ifa_name;
  }
  return loopback;
}

/// Our words for sets of transports, in UCX's.
std::string transport_list(const UcxOptions& options) {
  const std::string cuda = options.device_memory ? ",cuda" : "";
  if (options.transports == "tcp") return "tcp" + cuda;
  if (options.transports == "shm") return "posix,cma" + cuda;
  if (options.transports == "auto") return "posix,cma,tcp" + cuda;
  return options.transports;
}

class Config {
 public:
  Config() {
    const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config_);
    if (status != UCS_OK) {
      throw Error(Code::System, "UCX cannot read its configuration: " + describe(status) +
                                    "; check the UCX_* variables");
    }
  }
  ~Config() { ucp_config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  const ucp_config_t* get() const noexcept { return config_; }

  /// Sets what the user has asked for.
  void set(const char* key, const std::string& value) {
    const ucs_status_t status = ucp_config_modify(config_, key, value.c_str());
    if (status == UCS_OK) return;
    throw Error(Code::System,
                std::string("UCX does not take ") + key + "=" + value + ": " + describe(status));
  }

  /// Sets what suits us, unless the user has a wish. A version that lacks the key is fine.
  void prefer(const char* key, const char* value) {
    if (!user_has_set(key)) (void)ucp_config_modify(config_, key, value);
  }

 private:
  ucp_config_t* config_ = nullptr;
};

void configure(Config& config, const UcxOptions& options) {
  const bool automatic = options.transports == "auto";
  if (!automatic || !user_has_set("TLS")) config.set("TLS", transport_list(options));
  if (!options.interface.empty()) {
    config.set("NET_DEVICES", options.interface);
  } else if ((automatic || options.transports == "tcp") && !user_has_set("NET_DEVICES") &&
             !(automatic && user_has_set("TLS"))) {
    const std::string interface = choose_interface();
    if (!interface.empty()) config.set("NET_DEVICES", interface);
  }
  // Shared memory offers itself to endpoints with error handling only if told to.
  if (!user_has_set("POSIX_ERROR_HANDLING")) config.prefer("MM_ERROR_HANDLING", "y");
  // Dead processes are noticed by ProcessWatch or a broken socket, hung ones by the job's
  // heartbeats. UCX's own probes would wake an idle job, and over a full queue in shared
  // memory 1.13 repeats them without pause.
  config.prefer("KEEPALIVE_INTERVAL", "inf");
}

struct ContextInfo {
  ucp_context_h context = nullptr;
  ucs_status_t status = UCS_OK;
};

ContextInfo open(const Config& config) {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ContextInfo info;
  info.status = ucp_init(&params, config.get(), &info.context);
  return info;
}

}  // namespace

std::string describe(ucs_status_t status) {
  return std::string(ucs_status_string(status)) + " (UCS " + std::to_string(int{status}) + ")";
}

UcxContext::UcxContext(const UcxOptions& options) {
  try {
    open_context(options);
    open_worker();
  } catch (...) {
    destroy();
    throw;
  }
}

UcxContext::~UcxContext() {
  destroy();
}

void UcxContext::open_context(const UcxOptions& options) {
  quieten();
  Config config;
  configure(config, options);
  const ContextInfo info = open(config);
  if (info.status != UCS_OK) {
    throw Error(Code::System,
                "UCX " + ucx_version() + " does not start with transports '" + options.transports +
                    "' and interface '" + options.interface + "': " + describe(info.status) +
                    "; ucx_info -d lists what it has on this host, UCX_LOG_LEVEL=info says more");
  }
  context_ = info.context;
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context_, &attributes) == UCS_OK) {
    device_memory_ = (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  }
}

void UcxContext::open_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Not SINGLE: from 1.18 on that binds the worker to the thread that made it.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status == UCS_OK) status = ucp_worker_get_efd(worker_, &descriptor_);
  if (status != UCS_OK) {
    std::string remedy;
    if (status == UCS_ERR_NO_RESOURCE)
      remedy = "; is /dev/shm full? Give it room (docker run --shm-size), or TERSUM_TRANSPORT=tcp";
    throw Error(Code::System, "UCX cannot make a worker: " + describe(status) + remedy);
  }
}

std::vector<std::byte> UcxContext::address(Reach reach) const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = reach == Reach::OverNetworks ? UCP_WORKER_ADDRESS_FLAG_NET_ONLY : 0;
  const ucs_status_t status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) {
    throw Error(Code::System, "UCX does not tell its worker's address: " + describe(status));
  }
  const auto* begin = reinterpret_cast<const std::byte*>(attributes.address);
  std::vector<std::byte> address(begin, begin + attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  return address;
}

ucp_mem_h UcxContext::map(const Buffer& memory) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = memory.data;
  params.length = memory.bytes;
  params.memory_type =
      memory.memory == MemoryType::Cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = ucp_mem_map(context_, &params, &handle);
  if (status != UCS_OK) {
    throw Error(Code::System, "UCX cannot register " + std::to_string(memory.bytes) +
                                  " bytes of memory: " + describe(status));
  }
  mapped_.push_back(handle);
  return handle;
}

void UcxContext::destroy() noexcept {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  for (const ucp_mem_h handle : mapped_) ucp_mem_unmap(context_, handle);
  mapped_.clear();
  if (context_ != nullptr) ucp_cleanup(context_);
  worker_ = nullptr;
  context_ = nullptr;
}

std::string ucx_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

std::vector<std::string> ucx_transports() {
  quieten();
  std::vector<std::string> found;
  try {
    const Config config;
    const ContextInfo info = open(config);
    if (info.status != UCS_OK) return found;
    // UCP has no call that lists transports; its own report has one in each line with "--".
    char* text = nullptr;
    std::size_t bytes = 0;
    if (FILE* stream = open_memstream(&text, &bytes)) {
      ucp_context_print_info(info.context, stream);
      std::fclose(stream);
      std::istringstream lines(text);
      std::free(text);
      for (std::string line; std::getline(lines, line);) {
        const std::size_t mark = line.find("-- ");
        if (mark == std::string::npos || line.find("resource") == std::string::npos) continue;
        found.push_back(line.substr(mark + 3, line.find_first_of(" \t", mark + 3) - mark - 3));
      }
    }
    ucp_cleanup(info.context);
  } catch (const Error&) {
    // An unreadable configuration means that UCX does not start: nothing to list.
  }
  return found;
}

}  // namespace tersum::transport
