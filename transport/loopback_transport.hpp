// Ranks as threads of one process: for tests, and to run a whole job under a debugger.
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace tersum::transport {

/// What the ranks of one loopback job share. Thread-safe.
class LoopbackHub {
 public:
  /// Throws Error InvalidArgument unless ranks > 0.
  explicit LoopbackHub(int ranks);
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  int size() const noexcept;

  /// `rank` dies: the others hear of it as of any dead peer, and its own transport moves nothing
  /// any more; what is pending there ends in close().
  void kill(int rank);

 private:
  friend class LoopbackTransport;
  struct Mailbox;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

/// The transport of one rank, to be used by one thread. A send completes when the receiver has
/// copied the bytes straight out of its buffer: every message is a rendezvous, which makes this the
/// strictest of all transports. Host memory only. To close or destroy it is to leave the job.
std::unique_ptr<Transport> make_loopback_transport(std::shared_ptr<LoopbackHub> hub, int rank);

}  // namespace tersum::transport
