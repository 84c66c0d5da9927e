// Session: one process's membership in a job: its engine, its settings, its world group.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "src/device/device_collectives.hpp"
#include "src/engine/engine.hpp"
#include "src/log.hpp"
#include "src/trace.hpp"
#include "tersum/communicator.hpp"
#include "tersum/config.hpp"
#include "transport/transport.hpp"

namespace tersum {

/// Shared by all communicators of one connect(). The last one to go says good-bye to the job,
/// bounded by TERSUM_SHUTDOWN_TIMEOUT_MS.
class Session {
 public:
  /// hosts[r]: number of the host of rank r; ranks with equal numbers share a host.
  Session(const Config& config, int rank, std::vector<int> hosts,
          std::unique_ptr<runtime::Engine> engine, std::shared_ptr<Trace> trace);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Config& config() const noexcept { return config_; }
  runtime::Engine& engine() const noexcept { return *engine_; }
  Trace& trace() const noexcept { return *trace_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(hosts_.size()); }
  /// The number of the host of a world rank.
  int host_of(int world_rank) const { return hosts_[static_cast<std::size_t>(world_rank)]; }
  /// True if all ranks of `group` are on one host.
  bool share_a_host(const runtime::Group& group) const;

  /// Keeps `device` until it is let go or all ranks have said good-bye, and tells it of that.
  void keep(const std::shared_ptr<runtime::DeviceCollectives>& device);
  /// From now on only works that are left keep it.
  void let_go(const runtime::DeviceCollectives& device);

  /// For src/device. Null in builds without CUDA.
  const std::shared_ptr<runtime::DevicePools>& device_pools() const noexcept { return pools_; }

  /// Runs `function` on the engine's thread and waits for it.
  void run_on_engine(const std::function<void()>& function) const;

 private:
  struct Device {
    std::weak_ptr<runtime::DeviceCollectives> known;
    std::shared_ptr<runtime::DeviceCollectives> kept;  // null once it has been let go
  };

  const Config config_;
  const int rank_;
  const std::vector<int> hosts_;
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<runtime::Engine> engine_;
  std::mutex mutex_;
  std::vector<Device> devices_;
  std::shared_ptr<runtime::DevicePools> pools_ = runtime::make_device_pools();
};

/// The state behind Communicator.
class CommunicatorState {
 public:
  CommunicatorState(std::shared_ptr<Session> session, std::shared_ptr<runtime::Group> group);
  ~CommunicatorState();

  const std::shared_ptr<Session> session;
  const std::shared_ptr<runtime::Group> group;

  /// Its way over the GPUs' memory. The first call opens it, on all ranks, and blocks for that.
  runtime::DeviceCollectives& device();

  /// Why the communicator has ended, or Ok.
  Status status();

 private:
  std::mutex mutex_;
  std::shared_ptr<runtime::DeviceCollectives> device_;
};

namespace runtime {

/// What Communicator::split() makes its communicator of: the new group, which the engine has not
/// been told of yet; null for color < 0. Collective over `parent`; blocks.
std::shared_ptr<Group> split_group(const Session& session, const std::shared_ptr<Group>& parent,
                                   int color, int key);

}  // namespace runtime

/// Wraps a transport before it is connected (tests put a faulty one around it).
using TransportDecorator = std::function<std::unique_ptr<transport::Transport>(
    int rank, std::unique_ptr<transport::Transport>)>;

/// A world of `size` ranks inside this process, connected by the loopback transport: result[r] is
/// rank r's communicator, to be used by a thread of its own. No control plane: a rank that goes
/// away without a word is noticed by deadlines only.
std::vector<Communicator> make_local_world(int size, const Config& config = {},
                                           const TransportDecorator& decorate = {});

/// The same with settings for each rank: ranks whose host_id differ are on different hosts.
std::vector<Communicator> make_local_world(const std::vector<Config>& configs,
                                           const TransportDecorator& decorate = {});

}  // namespace tersum
