// The transport over UCX active messages: TCP, shared memory, and what else UCX offers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace tersum::transport {

struct UcxOptions {
  /// "tcp"; "shm" (inside one host only); "auto": shared memory inside a host and TCP between
  /// hosts, unless UCX_TLS says otherwise; or a list in UCX's own words ("rc,sm,cuda").
  std::string transports = "auto";
  /// Network device in UCX's words ("eth0", "mlx5_0:1"). Empty: UCX_NET_DEVICES if set, else (for
  /// "tcp" and "auto") the interface of the default route, else the first one that is up.
  std::string interface = {};
  /// Which host this is; ranks with equal names share one. Between others only networks are used,
  /// and no process is watched, even if they run on one machine.
  std::string host = {};
  /// Buffers may be in device memory, where UCX has CUDA: its transports are added to "tcp", "shm"
  /// and "auto". UCX then calls CUDA for host memory as well, and there waits for other threads of
  /// the process that wait inside CUDA; without, it calls none once it is open.
  bool device_memory = false;
};

/// Opens UCX. All ranks of a job must use equal `transports`. Throws Error: System, with UCX's
/// reason. The environment's UCX_* variables keep their meaning where an option does not set the
/// same thing.
std::unique_ptr<Transport> make_ucx_transport(const UcxOptions& options);

/// Version of the UCX library that is loaded: "1.13.1".
std::string ucx_version();

/// What UCX can use on this host, as "tcp/eth0", "posix/memory", ...; empty if UCX does not start.
std::vector<std::string> ucx_transports();

/// The transports that carry messages from one rank to another, as Transport::route() names them;
/// empty: none can.
struct UcxLanes {
  bool device_memory = false;  ///< they carry device memory, too
  std::string inside_host;
  std::string between_hosts;
};

/// What ranks with these options would use here. Error System if UCX does not start with them.
UcxLanes ucx_lanes(const UcxOptions& options);

}  // namespace tersum::transport
