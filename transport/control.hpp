// The control plane: who belongs to the job, who is alive, who has failed. A star of TCP
// connections at rank 0.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "tersum/error.hpp"

namespace tersum::transport {

/// What a rank brings when it joins.
struct JoinRequest {
  int rank = 0;
  int size = 1;
  std::string root_host;  ///< name, IPv4 or IPv6 address of rank 0
  std::uint16_t root_port = 0;
  std::string interface;  ///< bind and connect through this interface; empty: any
  std::string job;
  std::string secret;    ///< empty: no protection, the job's name only prevents mix-ups
  std::string settings;  ///< "NAME=value" lines that must be equal on all ranks
  std::string host_id;
  std::vector<std::byte> address;  ///< of the data transport
  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds heartbeat_timeout{5'000};
};

/// What everybody knows of a rank after the join.
struct Member {
  std::string host_id;
  std::vector<std::byte> address;
};

/// News from the control plane, called on the io_context's thread. The first cause is the same on
/// all ranks that rank 0 can reach.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  /// `cause.rank()` died, hung, or reported an error that ends the job. At most once.
  virtual void on_failure(const Status& cause) = 0;
  /// `rank` (another one than this) has said good-bye in good order; it will take part in nothing
  /// more.
  virtual void on_leave(int rank) = 0;
};

/// A joined rank's connection to rank 0 (or rank 0's to all). Lives on the io_context that joined:
/// all calls but join() are made on the thread that runs it.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  /// Joins: rank 0 listens, the others connect, retrying until the deadline; every message is
  /// authenticated by HMAC with the job's secret. Runs `context` until all ranks are in, one
  /// refuses, or time is up. Throws Error: Timeout (names the ranks that are missing), Mismatch
  /// (settings differ; both views), Protocol (wrong secret or job), System.
  static std::unique_ptr<ControlPlane> join(boost::asio::io_context& context,
                                            const JoinRequest& request);

  virtual const std::vector<Member>& members() const noexcept = 0;

  /// Offset to add to this process's steady clock to get rank 0's.
  virtual std::chrono::nanoseconds clock_offset() const noexcept = 0;

  /// From now on heartbeats go out and news is delivered, never from inside a call made here.
  /// Call it soon after the join. Once.
  virtual void start(ControlListener& listener) = 0;

  /// Tells everybody, through rank 0, that this rank has failed or seen `cause`; the answer comes
  /// as on_failure(). Nothing happens if a cause is known already. The cause is not Ok
  /// (InvalidArgument).
  virtual void report(const Status& cause) = 0;

  /// Says good-bye and hands `blob` (this rank's trace; may be empty) to rank 0. `done` is called
  /// when all ranks have said good-bye or one has failed, with the blobs of all ranks on rank 0
  /// (empty elsewhere; a rank that did not get to its good-bye has an empty blob). Heartbeats go
  /// on. After start(), once (InvalidState); at most 256 MiB (InvalidArgument).
  virtual void leave(std::vector<std::byte> blob,
                     std::function<void(std::vector<std::vector<std::byte>> blobs)> done) = 0;

  /// Closes all sockets, after what was sent has left them (bounded: at most 0.7 s in all, and at
  /// once after a complete good-bye). No callback comes after it. The destructor does it too; both
  /// may be called from a callback. The io_context must still exist.
  virtual void close() noexcept = 0;
};

}  // namespace tersum::transport
