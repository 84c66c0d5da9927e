// What both sides of the running control plane share: first cause wins, ticking, nothing after
// close().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "transport/control.hpp"
#include "transport/control_admission.hpp"
#include "transport/control_enrolment.hpp"

namespace tersum::transport::control {

/// The control plane after the join. Owned by a shared_ptr, so that a callback may destroy the
/// plane that calls it.
class Core : public ControlPlane, public std::enable_shared_from_this<Core> {
 public:
  using Done = std::function<void(std::vector<Bytes> blobs)>;

  const std::vector<Member>& members() const noexcept final { return members_; }
  std::chrono::nanoseconds clock_offset() const noexcept final { return clock_offset_; }
  void start(ControlListener& listener) final;
  void leave(Bytes blob, Done done) final;
  void close() noexcept final;

 protected:
  Core(boost::asio::io_context& context, const JoinRequest& request, std::vector<Member> members,
       std::chrono::nanoseconds clock_offset);

  virtual void on_start() = 0;
  virtual void on_tick() = 0;
  virtual void on_leaving(Bytes blob) = 0;
  /// After a failure: nothing more is expected by a rank that is leaving.
  virtual bool nothing_to_wait_for() const = 0;
  virtual std::vector<Bytes> take_blobs() { return {}; }
  virtual std::vector<std::shared_ptr<Link>> links() const = 0;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  bool failed() const noexcept { return failure_.has_value(); }
  /// All have said good-bye: nothing is a failure any more.
  bool complete() const noexcept { return complete_; }
  bool leaving() const noexcept { return leaving_; }

  /// Records and tells `cause` if it is the first. True if it was.
  bool record_failure(const Status& cause);
  void tell_leave(int rank);
  void set_complete();
  /// Calls `done` if leaving and the time has come.
  void check_done();
  /// Runs `action` from the io_context, unless closed by then.
  void later(std::function<void()> action);

  /// PeerLost "rank 2 hangs (...)" if nothing has come from the link for too long.
  std::optional<Status> silence(Link& link, int peer) const;
  /// A heartbeat, unless something else is on its way anyhow.
  static void beat(Link& link);
  /// How `peer` was lost, from how its connection ended.
  static Status loss(int peer, const Status& why);

 private:
  void schedule_tick();
  void start_grace();

  boost::asio::io_context& context_;
  int rank_;
  std::chrono::milliseconds heartbeat_timeout_;
  std::chrono::milliseconds start_timeout_;
  std::vector<Member> members_;
  std::chrono::nanoseconds clock_offset_;
  boost::asio::steady_timer tick_timer_;
  boost::asio::steady_timer grace_timer_;
  ControlListener* listener_ = nullptr;
  std::optional<Status> failure_;
  Done done_;
  Link::Clock::time_point started_;
  bool leaving_ = false;
  bool grace_running_ = false;
  bool grace_over_ = false;
  bool done_posted_ = false;
  bool complete_ = false;
  bool closed_ = false;
};

/// Rank 0 of the running control plane, and any other rank.
std::shared_ptr<Core> make_server(boost::asio::io_context& context, const JoinRequest& request,
                                  Admitted admitted);
std::shared_ptr<Core> make_client(boost::asio::io_context& context, const JoinRequest& request,
                                  Enrolled enrolled);

}  // namespace tersum::transport::control
