#include "src/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <map>
#include <numeric>
#include <thread>

#include "src/rethrow.hpp"
#include "transport/control.hpp"
#include "transport/launch.hpp"
#include "transport/loopback_transport.hpp"
#include "transport/ucx_transport.hpp"

namespace tersum {
namespace {

using runtime::Engine;
using runtime::EngineOptions;

/// Spinning helps where every rank has a core for its engine and one for its work; elsewhere it
/// takes the core from the very peer it waits for.
std::chrono::microseconds spin_time(const Config& config, int local_size) {
  if (config.spin.count() >= 0) return config.spin;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::chrono::microseconds(cores >= 2 * local_size ? 30 : 0);
}

EngineOptions engine_options(const Config& config, int local_size) {
  EngineOptions options;
  options.spin = spin_time(config, local_size);
  options.threads = config.threads;
  options.timeout = config.timeout;
  options.shutdown_timeout = config.shutdown_timeout;
  options.trace_directory = config.trace;
  return options;
}

std::string this_host(const Config& config) {
  if (!config.host_id.empty()) return config.host_id;
  std::string id;
  for (const char* file : {"/proc/sys/kernel/random/boot_id", "/etc/machine-id"}) {
    std::string line;
    std::ifstream in(file);
    if (std::getline(in, line)) id += line + ":";
  }
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return id + name;
}

/// Numbers for host ids: equal ones get equal numbers.
std::vector<int> number_hosts(const std::vector<std::string>& ids) {
  std::vector<int> numbers;
  std::map<std::string, int> known;
  for (const std::string& id : ids)
    numbers.push_back(known.emplace(id, static_cast<int>(known.size())).first->second);
  return numbers;
}

Communicator world_of(const Config& config, int rank, std::vector<int> hosts,
                      std::unique_ptr<Engine> engine, std::shared_ptr<Trace> trace) {
  std::vector<int> members(hosts.size());
  std::iota(members.begin(), members.end(), 0);
  auto session = std::make_shared<Session>(config, rank, std::move(hosts), std::move(engine),
                                           std::move(trace));
  auto group = std::make_shared<runtime::Group>(1, rank, members);
  return Communicator(std::make_shared<CommunicatorState>(std::move(session), std::move(group)));
}

std::shared_ptr<Trace> make_trace(const Config& config, int rank) {
  if (!config.trace.empty()) prepare_trace_directory(config.trace);
  return std::make_shared<Trace>(rank, !config.trace.empty());
}

Communicator alone(const Config& config, int rank) {
  auto transport =
      transport::make_loopback_transport(std::make_shared<transport::LoopbackHub>(1), 0);
  const std::vector<std::vector<std::byte>> addresses{transport->address()};
  auto trace = make_trace(config, rank);
  auto engine = std::make_unique<Engine>(
      engine_options(config, 1), std::make_unique<boost::asio::io_context>(1), std::move(transport),
      nullptr, 0, addresses, Logger(config.log, rank), trace);
  return world_of(config, 0, {0}, std::move(engine), std::move(trace));
}

}  // namespace

Session::Session(const Config& config, int rank, std::vector<int> hosts,
                 std::unique_ptr<Engine> engine, std::shared_ptr<Trace> trace)
    : config_(config),
      rank_(rank),
      hosts_(std::move(hosts)),
      trace_(std::move(trace)),
      engine_(std::move(engine)) {}

Session::~Session() {
  const auto end = [](Engine& engine, const auto& devices) {
    engine.shutdown();
    for (const Device& device : devices)
      if (const auto open = device.known.lock()) open->close();
  };
  if (!engine_->on_engine_thread()) {
    end(*engine_, devices_);
    return;
  }
  // The last handle went in a completion callback: the engine cannot join itself.
  std::thread([end, engine = std::shared_ptr<Engine>(std::move(engine_)), trace = trace_,
               devices = std::move(devices_), pools = std::move(pools_)] {
    end(*engine, devices);
  }).detach();
}

void Session::keep(const std::shared_ptr<runtime::DeviceCollectives>& device) {
  const std::lock_guard lock(mutex_);
  std::erase_if(devices_, [](const Device& entry) { return entry.known.expired(); });
  devices_.push_back({device, device});
}

void Session::let_go(const runtime::DeviceCollectives& device) {
  std::shared_ptr<runtime::DeviceCollectives> last;  // goes without the lock
  const std::lock_guard lock(mutex_);
  for (Device& entry : devices_)
    if (entry.kept.get() == &device) last = std::exchange(entry.kept, nullptr);
}

bool Session::share_a_host(const runtime::Group& group) const {
  const auto& members = group.members();
  return std::ranges::all_of(
      members, [&](int member) { return host_of(member) == host_of(members.front()); });
}

void Session::run_on_engine(const std::function<void()>& function) const {
  if (engine_->on_engine_thread()) return function();
  std::promise<void> done;
  engine_->submit(runtime::make_command([&] {
    function();
    done.set_value();
  }));
  done.get_future().wait();
}

CommunicatorState::CommunicatorState(std::shared_ptr<Session> owner,
                                     std::shared_ptr<runtime::Group> members)
    : session(std::move(owner)), group(std::move(members)) {
  session->run_on_engine([this] { session->engine().add_group(group); });
}

CommunicatorState::~CommunicatorState() {
  if (device_ && device_->drain()) session->let_go(*device_);
  session->engine().submit(runtime::make_command(
      [engine = &session->engine(), id = group->id()] { engine->remove_group(id); }));
}

Status CommunicatorState::status() {
  if (const Status failure = group->failure(); !failure.is_ok()) return failure;
  std::shared_ptr<runtime::DeviceCollectives> device;
  {
    const std::lock_guard lock(mutex_);
    device = device_;
  }
  return device ? device->status() : Status::ok();
}

runtime::DeviceCollectives& CommunicatorState::device() {
  const std::lock_guard lock(mutex_);
  if (!device_) {
    device_ = runtime::open_device_collectives(*this);
    session->keep(device_);
    group->on_failure([weak = std::weak_ptr(device_)] {
      if (const auto device = weak.lock()) device->abort();
    });
  }
  return *device_;
}

Communicator Communicator::connect(const Config& config) try {
  config.validate();
  const auto launch = transport::detect_launch(
      {config.rank, config.size, config.local_rank, config.local_size, config.root},
      transport::process_environment());
  if (launch.size == 1) return alone(config, launch.rank);

  const std::string host = this_host(config);
  auto data = transport::make_ucx_transport(
      {config.transport, config.interface, host, config.device_staging == "ucx"});
  transport::JoinRequest request;
  request.rank = launch.rank;
  request.size = launch.size;
  request.root_host = launch.root_host;
  request.root_port = launch.root_port;
  request.interface = config.interface;
  request.job = config.job;
  request.secret = config.secret;
  request.settings = agreement_text(config);
  request.host_id = host;
  request.address = data->address();
  request.join_timeout = config.join_timeout;
  request.heartbeat_timeout = config.heartbeat_timeout;
  auto trace = make_trace(config, launch.rank);
  auto context = std::make_unique<boost::asio::io_context>(1);
  auto control = transport::ControlPlane::join(*context, request);

  std::vector<std::vector<std::byte>> addresses;
  std::vector<std::string> hosts;
  for (const auto& member : control->members()) {
    addresses.push_back(member.address);
    hosts.push_back(member.host_id);
  }
  const auto local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), host));
  auto engine = std::make_unique<Engine>(engine_options(config, local_size), std::move(context),
                                         std::move(data), std::move(control), launch.rank,
                                         addresses, Logger(config.log, launch.rank), trace);
  return world_of(config, launch.rank, number_hosts(hosts), std::move(engine), std::move(trace));
} catch (...) {
  rethrow_as_error("connect");
}

std::vector<Communicator> make_local_world(int size, const Config& config,
                                           const TransportDecorator& decorate) {
  return make_local_world(std::vector<Config>(static_cast<std::size_t>(size), config), decorate);
}

std::vector<Communicator> make_local_world(const std::vector<Config>& configs,
                                           const TransportDecorator& decorate) {
  const int size = static_cast<int>(configs.size());
  auto hub = std::make_shared<transport::LoopbackHub>(size);
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::vector<std::byte>> addresses;
  std::vector<std::string> hosts;
  for (int rank = 0; rank < size; ++rank) {
    auto transport = transport::make_loopback_transport(hub, rank);
    if (decorate) transport = decorate(rank, std::move(transport));
    addresses.push_back(transport->address());
    transports.push_back(std::move(transport));
    hosts.push_back(configs[static_cast<std::size_t>(rank)].host_id);
  }
  std::vector<Communicator> world;
  for (int rank = 0; rank < size; ++rank) {
    const Config& config = configs[static_cast<std::size_t>(rank)];
    auto trace = make_trace(config, rank);
    auto engine = std::make_unique<Engine>(
        engine_options(config, size), std::make_unique<boost::asio::io_context>(1),
        std::move(transports[static_cast<std::size_t>(rank)]), nullptr, rank, addresses,
        Logger(config.log, rank), trace);
    world.push_back(
        world_of(config, rank, number_hosts(hosts), std::move(engine), std::move(trace)));
  }
  return world;
}

}  // namespace tersum
