// The class behind make_ucx_transport(). ucx_transport.cpp: the interface, sends and progress;
// ucx_receive.cpp: what arrives; ucx_peer.cpp: endpoints, failures, and the end.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/matcher.hpp"
#include "transport/process_watch.hpp"
#include "transport/ucx_context.hpp"
#include "transport/ucx_message.hpp"

namespace tersum::transport {

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const UcxOptions& options);
  ~UcxTransport() override;

  std::string_view name() const noexcept override { return "ucx"; }
  Capabilities capabilities() const noexcept override;
  std::vector<std::byte> address() const override;
  void connect(int rank, const std::vector<std::vector<std::byte>>& addresses,
               Listener& listener) override;
  void* register_memory(const Buffer& memory) override { return context_.map(memory); }
  std::string route(int peer) override;
  void post_send(int peer, const Envelope& envelope, ConstBuffer buffer, Request& request) override;
  void post_receive(int peer, const Key& key, Buffer buffer, Request& request) override;
  void cancel(Request& request) override;
  void drop(std::uint32_t communicator, std::uint64_t operation) override;
  bool progress() override;
  int descriptor() const override { return processes_.descriptor(); }
  bool arm() override;
  void disconnect(int peer, const Status& cause) override;
  void close(std::chrono::milliseconds deadline) noexcept override;

 private:
  struct Peer {
    UcxTransport* owner = nullptr;
    int rank = -1;
    ProcessIdentity process;
    bool same_host = false;
    bool watched = false;
    std::vector<std::byte> address;
    ucp_ep_h endpoint = nullptr;
    bool endpoint_wanted = false;
    bool alive = true;    // requests with it can be posted
    bool broken = false;  // an error was seen; progress() deals with it
    bool left = false;    // it has said good-bye
    Status cause;         // !alive: why
    std::uint64_t next_send = 0;
    std::uint64_t next_receive = 0;
    std::map<std::uint64_t, UcxArrival*> early;  // by sequence: they overtook an earlier message
    std::size_t closes_in_flight = 0;
    std::chrono::steady_clock::time_point given_up{};
  };
  /// A send or a receive that UCX is working on. Lives until UCX has called back.
  struct Flight : Operation {
    UcxTransport* owner = nullptr;
    int peer = -1;
    std::size_t bytes = 0;
    WireHeader header;
    bool listed = false;  // in flights_, as all that are waited for
    std::size_t position = 0;
  };
  using Clock = std::chrono::steady_clock;

  // ucx_transport.cpp
  Peer& peer(int rank);
  bool refuse(Peer& peer, MemoryType memory, Request& request);
  void send(Peer& peer, WireHeader::Kind kind, const Envelope& envelope, ConstBuffer buffer,
            Request* request);
  Flight& take_off(Operation::Kind kind, int peer, std::size_t bytes, Request* request);
  void follow(Flight& flight);
  void land(Flight& flight, ucs_status_t status);
  bool progress_worker();
  bool progress_self();
  static void on_sent(void* request, ucs_status_t status, void* user_data);
  static void on_received(void* request, ucs_status_t status, std::size_t length, void* user_data);

  // ucx_receive.cpp
  void listen();
  static ucs_status_t on_message(void* arg, const void* header, std::size_t header_length,
                                 void* data, std::size_t length, const ucp_am_recv_param_t* param);
  ucs_status_t take(const WireHeader& header, const Payload& payload);
  bool deliver(Peer& peer, WireHeader::Kind kind, const Envelope& envelope, const Payload& payload,
               UcxArrival* held);
  void deliver_early(Peer& peer);
  bool fill(int peer, const Key& key, const Payload& payload, Buffer buffer, Request& request);
  void start_receive(int peer, const Payload& payload, Buffer buffer, Request& request);
  void receive_self(UcxArrival& arrival, Buffer buffer, Request& request);
  UcxArrival& hold(int peer, WireHeader::Kind kind, const Envelope& envelope,
                   const Payload& payload);
  void release(UcxArrival& arrival, const Status& self_send_status);

  // ucx_peer.cpp
  void want_endpoint(Peer& peer);
  bool open_endpoint(Peer& peer);
  bool open_wanted();
  void break_peer(Peer& peer, const std::string& why);
  bool bury_broken();
  bool look_at_processes();
  void give_up(Peer& peer, const Status& cause, bool keep_complete_messages);
  bool abandon_stuck();
  bool busy() const;
  bool close_endpoints();
  void close_endpoint(Peer& peer);
  static void on_error(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void on_closed(void* request, ucs_status_t status, void* user_data);
  static void on_flushed(void* request, ucs_status_t status, void* user_data);
  void abort_waiting();
  void flush(Clock::time_point until);
  template <class Done>
  void wait(Clock::time_point until, Done done);
  void shut_down(Clock::time_point until);

  std::string transports_;
  std::uint64_t host_;  ///< hash of its name
  UcxContext context_;
  ProcessWatch processes_;
  unsigned calls_since_look_ = 0;  // at processes_, of progress()
  Listener* listener_ = nullptr;
  int rank_ = -1;
  bool closing_ = false;
  bool closed_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;
  Matcher matcher_;
  CompletionQueue completions_;
  Pool<UcxArrival> arrivals_;
  Pool<Flight> flight_pool_;
  std::vector<Flight*> flights_;        // that UCX still owes us
  std::deque<UcxArrival*> self_sends_;  // that progress() has not looked at yet
  std::vector<Peer*> broken_;           // news for progress()
  std::vector<Peer*> to_open_;          // their endpoints are wanted
  std::vector<Peer*> to_close_;         // their endpoints are to be closed by force
  std::vector<Peer*> given_up_;         // for abandon_stuck()
  std::size_t flushes_in_flight_ = 0;
};

}  // namespace tersum::transport
