#include "transport/control.hpp"

#include <memory>
#include <string>
#include <utility>

#include "transport/control_core.hpp"

namespace tersum::transport {
namespace {

using control::Core;

/// Owns a side of the control plane and closes it at the end.
class Plane final : public ControlPlane {
 public:
  explicit Plane(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~Plane() override { core_->close(); }
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;

  // A callback may destroy this object while a call is on its way through it: the core outlives it.
  const std::vector<Member>& members() const noexcept override { return core_->members(); }
  std::chrono::nanoseconds clock_offset() const noexcept override { return core_->clock_offset(); }
  void start(ControlListener& listener) override { core_->start(listener); }
  void report(const Status& cause) override {
    if (cause.is_ok()) throw Error(Code::InvalidArgument, "report() needs a cause, not Ok");
    core_->report(cause);
  }
  void leave(std::vector<std::byte> blob,
             std::function<void(std::vector<std::vector<std::byte>>)> done) override {
    core_->leave(std::move(blob), std::move(done));
  }
  void close() noexcept override { core_->close(); }

 private:
  std::shared_ptr<Core> core_;
};

void require(bool condition, const std::string& message) {
  if (!condition) throw Error(Code::InvalidArgument, message);
}

void limit(const char* what, std::size_t bytes, std::size_t most) {
  require(bytes <= most, std::string(what) + " has " + std::to_string(bytes) + " bytes; at most " +
                             std::to_string(most) + " are allowed");
}

void check(const JoinRequest& request) {
  require(request.size >= 1 && request.size <= control::kMaxSize,
          "a job has 1 to " + std::to_string(control::kMaxSize) + " ranks, not " +
              std::to_string(request.size));
  require(request.rank >= 0 && request.rank < request.size,
          "rank " + std::to_string(request.rank) + " is not in a job of " +
              std::to_string(request.size) + " ranks: check TERSUM_RANK and TERSUM_SIZE");
  limit("the job's name (TERSUM_JOB)", request.job.size(), control::kMaxNameBytes);
  limit("the host id (TERSUM_HOST_ID)", request.host_id.size(), control::kMaxNameBytes);
  limit("the transport's address", request.address.size(), control::kMaxAddressBytes);
  limit("the text of settings", request.settings.size(), control::kMaxSettingsBytes);
  require(request.heartbeat_timeout.count() > 0,
          "the heartbeat timeout (TERSUM_HEARTBEAT_TIMEOUT_MS) must be positive");
  require(request.join_timeout.count() > 0,
          "the join timeout (TERSUM_JOIN_TIMEOUT_MS) must be positive");
  require(request.size == 1 || (!request.root_host.empty() && request.root_port != 0),
          "the address of rank 0 is not known: set TERSUM_ROOT=host:port");
}

std::shared_ptr<Core> join_as(boost::asio::io_context& context, const JoinRequest& request) {
  if (request.size == 1) {
    control::Admitted alone{{nullptr}, {Member{request.host_id, request.address}}};
    return control::make_server(context, request, std::move(alone));
  }
  if (request.rank == 0) {
    return control::make_server(context, request, control::admit_all(context, request));
  }
  return control::make_client(context, request, control::enrol(context, request));
}

}  // namespace

std::unique_ptr<ControlPlane> ControlPlane::join(boost::asio::io_context& context,
                                                 const JoinRequest& request) {
  check(request);
  struct Restart {
    boost::asio::io_context& context;
    ~Restart() { context.restart(); }
  } restart_at_the_end{context};
  return std::make_unique<Plane>(join_as(context, request));
}

}  // namespace tersum::transport
