// Owners of the UCX objects that a transport needs once: context and worker.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ucp/api/ucp.h>

#include "transport/ucx_transport.hpp"

namespace tersum::transport {

/// "Endpoint timeout (UCS -80)".
std::string describe(ucs_status_t status);

/// The lanes of an endpoint: "posix/memory tcp/eth0".
std::string lanes_of(ucp_ep_h endpoint);

/// One UCX context with one worker for active messages and wake-ups. Used by one thread at a time.
class UcxContext {
 public:
  /// Throws Error: System (UCX refuses; its reason and the options are in the message).
  explicit UcxContext(const UcxOptions& options);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_worker_h worker() const noexcept { return worker_; }
  /// True if CUDA memory can be moved.
  bool device_memory() const noexcept { return device_memory_; }
  enum class Reach { Anywhere, OverNetworks };
  /// The worker's address, with all its transports or only those that cross hosts.
  std::vector<std::byte> address(Reach reach) const;
  /// Registers memory until destroy(). Throws Error System.
  ucp_mem_h map(const Buffer& memory);
  /// Readable when the armed worker has something to do.
  int descriptor() const noexcept { return descriptor_; }
  /// Destroys worker and context; the destructor does it too.
  void destroy() noexcept;

 private:
  void open_context(const UcxOptions& options);
  void open_worker();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<ucp_mem_h> mapped_;
  int descriptor_ = -1;
  bool device_memory_ = false;
};

}  // namespace tersum::transport
