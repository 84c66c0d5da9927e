#include "src/engine/operation.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <set>

#include "src/engine/engine.hpp"

namespace tersum::runtime {
namespace {
/// Below this, a computation is shorter than a trip to the pool and back.
constexpr std::size_t kInlineBytes = 64 * 1024;
}  // namespace

void TransferRequest::on_complete(const Status& outcome, std::size_t moved) {
  complete = true;
  status = outcome;
  bytes = moved;
  if (!receiving && outcome.is_ok()) owner.group_->count_sent(moved);
  if (waiter) owner.engine_.resume_later(std::exchange(waiter, nullptr));
  if (abandoned) owner.release(*this);
}

Transfer::~Transfer() {
  if (request_ == nullptr) return;
  if (request_->complete) {
    request_->owner.release(*request_);
  } else {
    request_->abandoned = true;
    request_->owner.engine_.transport().cancel(*request_);
  }
}

bool Transfer::await_ready() const noexcept {
  return request_->complete || !request_->owner.cause_.is_ok();
}

void Transfer::await_suspend(std::coroutine_handle<> waiter) noexcept {
  request_->waiter = waiter;
}

std::size_t Transfer::await_resume() {
  Operation& owner = request_->owner;
  if (!owner.cause_.is_ok()) throw Error(owner.cause_);
  if (!request_->status.is_ok()) throw Error(request_->status);
  return request_->bytes;
}

void Computation::run() noexcept {
  try {
    function_();
  } catch (...) {
    exception_ = std::current_exception();
  }
}

bool Computation::await_ready() {
  if (bytes_ >= kInlineBytes && owner_.engine_.pool().available()) return false;
  run();
  return true;
}

void Computation::await_suspend(std::coroutine_handle<> waiter) {
  ++owner_.outside_;
  owner_.engine_.pool().run([this, waiter] {
    run();
    Operation& owner = owner_;
    owner.engine_.submit(make_command([&owner, waiter] {
      --owner.outside_;
      waiter.resume();
    }));
  });
}

Operation::Operation(Engine& engine, std::shared_ptr<Group> group, const Signature& signature,
                     std::shared_ptr<WorkState> work, std::chrono::milliseconds timeout, Body body)
    : engine_(engine),
      group_(std::move(group)),
      signature_(signature),
      work_(std::move(work)),
      body_(std::move(body)),
      scratch_(engine.scratch()),
      started_(Clock::now()),
      deadline_(started_ + timeout) {}

std::string Operation::name() const {
  std::string text = "rank " + std::to_string(group_->rank()) + ", " + to_string(signature_.kind);
  if (key_.operation & kPointToPoint)
    return text + " #" + std::to_string(key_.operation & ~kPointToPoint);
  text += " #" + std::to_string(key_.operation);
  if (signature_.kind == CallKind::ExchangeSlice) text += " slice " + std::to_string(key_.slice);
  return text;
}

void Operation::set_stage(Stage stage) noexcept {
  work_->set_stage(stage);
  if (on_stage) on_stage(stage);
  if (engine_.tracing()) stages_.emplace_back(stage, Clock::now());
}

TransferRequest& Operation::new_request(int peer, bool receiving) {
  if (!cause_.is_ok()) throw Error(cause_);
  auto request = std::make_unique<TransferRequest>(*this, peer, receiving);
  in_flight_.push_back(request.get());
  return *request.release();  // back in release()
}

void Operation::release(TransferRequest& request) noexcept {
  auto it = std::find(in_flight_.begin(), in_flight_.end(), &request);
  *it = in_flight_.back();
  in_flight_.pop_back();
  delete &request;
  finish_if_quiet();
}

void Operation::narrow(std::vector<int> ranks) {
  const auto me = std::ranges::find(ranks, group_->rank());
  if (!ranks.empty() && me == ranks.end())
    throw Error(Code::Internal, name() + " was narrowed to ranks without this one");
  among_rank_ = static_cast<int>(me - ranks.begin());
  among_ = std::move(ranks);
}

Transfer Operation::send(int to, std::uint64_t hop, ConstBuffer buffer) {
  TransferRequest& request = new_request(group_rank(to), false);
  transport::Envelope envelope{key_, signature_.to_note()};
  envelope.key.hop = hop;
  engine_.transport().post_send(world(to), envelope, buffer, request);
  return Transfer(&request);
}

Transfer Operation::receive(int from, std::uint64_t hop, Buffer buffer) {
  TransferRequest& request = new_request(group_rank(from), true);
  transport::Key key = key_;
  key.hop = hop;
  engine_.transport().post_receive(world(from), key, buffer, request);
  return Transfer(&request);
}

Detached Operation::drive() {
  Status status;
  try {
    Task<> task = body_(*this);
    co_await task;
  } catch (const Error& error) {
    status = error.status();
  } catch (const std::bad_alloc&) {
    status = Status(Code::OutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    status = Status(Code::Internal, error.what());
  }
  body_ended(status);
}

void Operation::fail(const Status& status) {
  if (!cause_.is_ok() || body_ended_) return;
  cause_ = status.at(name() + ", " + std::string(to_string(stage())));
  failed_at_ = Clock::now();
  for (TransferRequest* request : in_flight_) {
    if (!request->complete) engine_.transport().cancel(*request);
    if (request->waiter) engine_.resume_later(std::exchange(request->waiter, nullptr));
  }
  engine_.forget(key_.communicator, key_.operation);  // peers wait for us to let go, as we for them
}

void Operation::body_ended(const Status& status) noexcept {
  body_ended_ = true;
  if (status.is_ok()) {
    cause_ = Status::ok();  // it was told to fail when its output had been written already
  } else if (cause_.is_ok()) {
    cause_ = status.at(name() + ", " + std::string(to_string(stage())));
    failed_at_ = Clock::now();
    engine_.forget(key_.communicator, key_.operation);
    engine_.on_body_failed(*this);
  }
  finish_if_quiet();
}

void Operation::finish_if_quiet() {
  if (body_ended_ && !awaits_verdict_ && in_flight_.empty() && outside_ == 0) engine_.retire(*this);
}

std::string Operation::missing_ranks() const {
  std::set<int> ranks;
  for (const TransferRequest* request : in_flight_)
    if (request->receiving && !request->complete) ranks.insert(request->peer);
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace tersum::runtime
