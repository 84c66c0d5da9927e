// The engine: one thread per session that owns the transport, the control sockets and every
// operation in flight.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "src/engine/command_queue.hpp"
#include "src/engine/group.hpp"
#include "src/engine/operation.hpp"
#include "src/engine/scratch.hpp"
#include "src/engine/worker_pool.hpp"
#include "src/log.hpp"
#include "src/trace.hpp"
#include "transport/control.hpp"
#include "transport/transport.hpp"

namespace tersum::runtime {

struct EngineOptions {
  std::chrono::microseconds spin{0};
  int threads = 1;
  std::chrono::milliseconds timeout{300'000};
  std::chrono::milliseconds shutdown_timeout{10'000};
  std::string trace_directory;
};

/// An event loop on Boost.Asio: commands from any thread, transport progress, resumed coroutines,
/// control news and timers; it spins a little, then sleeps on descriptors. Calls marked [any
/// thread] may come from anywhere; the others belong to the engine's thread.
class Engine final : private transport::Listener, private transport::ControlListener {
 public:
  /// Takes over a connected context. `control` is null for worlds inside one process.
  Engine(const EngineOptions& options, std::unique_ptr<boost::asio::io_context> context,
         std::unique_ptr<transport::Transport> transport,
         std::unique_ptr<transport::ControlPlane> control, int rank,
         const std::vector<std::vector<std::byte>>& addresses, Logger logger,
         std::shared_ptr<Trace> trace);
  ~Engine() override;

  /// Runs `command` on the engine's thread, soon. [any thread]
  void submit(std::unique_ptr<Command> command) noexcept;

  /// Ends what is pending with Aborted, says good-bye, closes everything, stops the thread. Bounded
  /// by options.shutdown_timeout. Called once, from any thread but the engine's own.
  void shutdown() noexcept;

  /// Starts an operation under the group's next number, or under a given key.
  void start(std::shared_ptr<Operation> operation);
  void start(std::shared_ptr<Operation> operation, std::uint64_t number, std::uint32_t slice);
  /// Starts one end of a send or receive with `peer`, under the pair's next number.
  void start_pair(std::shared_ptr<Operation> operation, int peer, bool sending);
  /// Starts the parts of one call, at least one, under the group's next number: they fail together.
  void start_slices(const std::vector<std::shared_ptr<Operation>>& slices);

  /// From here on the group hears of arrivals and failures, also of those that came before.
  void add_group(std::shared_ptr<Group> group);
  /// What is pending there, on all ranks, fails with Aborted: this one has destroyed the `what`.
  void remove_group(std::uint32_t id, std::string_view what = "communicator");
  /// An id for a group whose first member is this rank: given once in the whole job. 0 when there
  /// are no more (after 65,534).
  std::uint32_t new_group_id() noexcept;

  /// Fails one operation of a group (and what fails together with it), here and, if `tell`, on the
  /// other participants.
  void fail_operation(Group& group, const transport::Key& key, const Status& status, bool tell);
  /// Fails everything of a group, now and in future.
  void fail_group(Group& group, const Status& status, bool tell);

  /// Releases what has arrived for an operation that will never run here.
  void forget(std::uint32_t group, std::uint64_t number);

  /// Looks at `work` from time to time until it is done. Any thread.
  void watch(std::shared_ptr<WorkState> work);
  /// Looks at all that is watched, now.
  void look_at_watched();

  /// Something on a device that the engine looks at in every turn, until it has come; it does not
  /// sleep before.
  class Polled {
   public:
    /// True when it has come; it may be gone afterwards. May resume coroutines.
    virtual bool look() noexcept = 0;

   protected:
    ~Polled() = default;
  };
  /// `polled` lives until it has come.
  void poll(Polled& polled) { polled_.push_back(&polled); }

  void resume_later(std::coroutine_handle<> handle) { ready_.push_back(handle); }
  transport::Transport& transport() noexcept { return *transport_; }
  WorkerPool& pool() noexcept { return pool_; }
  ScratchCache& scratch() noexcept { return scratch_; }
  Trace& trace() const noexcept { return *trace_; }
  bool tracing() const noexcept { return trace_->enabled(); }
  const Logger& logger() const noexcept { return logger_; }
  const EngineOptions& options() const noexcept { return options_; }
  bool on_engine_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }
  /// True in the thread of any engine, which must not block.
  static bool on_any_engine_thread() noexcept;

 private:
  friend class Operation;
  struct Notice;        // a failure notice to be sent
  struct NoticeReader;  // a failure notice on its way in
  struct Early {
    int peer;
    Signature signature;
  };

  // transport::Listener
  Verdict on_arrival(int peer, const transport::Envelope& envelope, std::size_t bytes) override;
  void on_peer_failure(int peer, const Status& status) override;
  // transport::ControlListener
  void on_failure(const Status& cause) override;
  void on_leave(int rank) override;

  void loop();
  bool turn();
  void sleep();
  bool run_ready();
  void look_at_polled();
  void watch_descriptor(boost::asio::posix::stream_descriptor& descriptor, bool& waiting);
  void schedule_tick();
  void tick();

  void forget(const transport::Key& key);
  void activate(std::shared_ptr<Operation> operation);
  void on_body_failed(Operation& operation);
  void retire(Operation& operation) noexcept;
  void record_trace(const Operation& operation) noexcept;
  void fail_everything(const Status& cause);
  void tell(const Group& group, const transport::Key& key, const Status& status);
  void read_notices();
  void apply_notice(const transport::Key& key, const Status& status);
  void lose_peer(const Status& cause);
  void mismatch(Operation& operation, int peer, const Signature& theirs);
  void begin_shutdown();
  void finish_shutdown(std::vector<std::vector<std::byte>> blobs) noexcept;
  void write_trace(std::vector<std::vector<std::byte>>& blobs) noexcept;

  const EngineOptions options_;
  const int rank_;
  const Logger logger_;
  const std::shared_ptr<Trace> trace_;
  ScratchCache scratch_;
  std::unique_ptr<boost::asio::io_context> context_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::ControlPlane> control_;
  boost::asio::posix::stream_descriptor transport_descriptor_, wake_descriptor_;
  bool transport_waiting_ = false, wake_waiting_ = false;
  boost::asio::steady_timer ticker_, grace_, watcher_;
  bool ticking_ = false, watching_ = false;
  std::vector<std::shared_ptr<WorkState>> watched_;

  CommandQueue commands_;
  std::atomic<bool> sleeping_{false};

  std::vector<std::coroutine_handle<>> ready_;
  std::vector<Polled*> polled_;
  std::unordered_map<transport::Key, std::shared_ptr<Operation>> active_;
  std::vector<std::shared_ptr<Operation>> retired_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Group>> groups_;
  std::unordered_set<std::uint32_t> closed_groups_;
  std::unordered_map<transport::Key, std::vector<Early>> early_;
  std::vector<std::unique_ptr<NoticeReader>> notices_in_;
  std::vector<std::unique_ptr<Notice>> notices_out_;
  std::vector<std::pair<transport::Key, Status>> early_notices_;  ///< for groups not added yet
  std::uint32_t next_group_ = 2;                                  ///< the world is group 1
  std::unordered_map<int, Clock::time_point> left_;
  Status job_failure_;
  Status suspicion_;  ///< a lost peer that the control plane has not confirmed yet
  bool shutting_down_ = false, stopped_ = false;

  WorkerPool pool_;
  std::thread thread_;
};

}  // namespace tersum::runtime
