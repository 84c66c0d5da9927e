#include "src/engine/engine.hpp"

#include <algorithm>

#include <boost/asio/post.hpp>

#include "src/engine/notice.hpp"

namespace tersum::runtime {
namespace {

// For what is still to be sent; after a failure nobody waits for it.
constexpr auto kCloseDeadline = std::chrono::milliseconds(1000);
constexpr auto kLastCloseDeadline = std::chrono::milliseconds(100);

}  // namespace

// ---- the end ----

void Engine::shutdown() noexcept {
  submit(make_command([this] { begin_shutdown(); }));
  thread_.join();
}

void Engine::begin_shutdown() {
  if (shutting_down_) return;
  shutting_down_ = true;
  std::vector<std::uint32_t> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  for (std::uint32_t id : ids) remove_group(id);
  auto& limit = grace_;  // no verdict is needed any more
  limit.expires_after(options_.shutdown_timeout);
  limit.async_wait([this](const boost::system::error_code& error) {
    if (!error) finish_shutdown({});
  });
  if (!control_) {
    boost::asio::post(*context_, [this] { finish_shutdown({}); });
    return;
  }
  const auto offset = control_->clock_offset();
  control_->leave(trace_->serialise(offset), [this](std::vector<std::vector<std::byte>> blobs) {
    finish_shutdown(std::move(blobs));
  });
}

void Engine::finish_shutdown(std::vector<std::vector<std::byte>> blobs) noexcept {
  if (stopped_) return;
  // Operations that failed just now still hold buffers: let the transport go first, then nothing is
  // in use.
  transport_->close(job_failure_.is_ok() ? kCloseDeadline : kLastCloseDeadline);
  run_ready();
  const auto outside = [](const auto& entry) { return entry.second->outside_ > 0; };
  while (
      std::any_of(active_.begin(), active_.end(), outside)) {  // pool and devices will soon be done
    if (!commands_.run_all()) std::this_thread::yield();
    run_ready();
    look_at_polled();
  }
  while (!active_.empty()) {
    auto operation = active_.begin()->second;
    operation->awaits_verdict_ = false;
    operation->finish_if_quiet();
    if (active_.contains(operation->key_)) retire(*operation);
  }
  if (control_) control_->close();
  write_trace(blobs);
  grace_.cancel();
  ticker_.cancel();
  stopped_ = true;
}

// ---- timelines ----

void Engine::record_trace(const Operation& operation) noexcept {
  if (!tracing()) return;
  const Signature& signature = operation.signature_;
  TraceArguments arguments;
  try {
    arguments.key = operation.trace_label.empty() ? operation.name() : operation.trace_label;
  } catch (const std::bad_alloc&) {  // a span without a label is still a span
  }
  arguments.bytes = static_cast<std::int64_t>(signature.count * element_bytes(signature.dtype));
  const auto now = Clock::now();
  if (signature.kind != CallKind::ExchangeSlice) {
    trace_->span("collectives", to_string(signature.kind), "collective", operation.started_, now,
                 arguments);
    return;
  }
  arguments.slice = operation.key_.slice;
  for (std::size_t i = 0; i < operation.stages_.size(); ++i) {
    const auto until = i + 1 < operation.stages_.size() ? operation.stages_[i + 1].second : now;
    trace_->stage(operation.stages_[i].first, operation.stages_[i].second, until, arguments);
  }
}

/// Rank 0 has everybody's spans after a good end, and a job of one rank always has; otherwise each
/// rank writes what it has.
void Engine::write_trace(std::vector<std::vector<std::byte>>& blobs) noexcept {
  if (!tracing()) return;
  try {
    if (!control_ && rank_ == 0) blobs.push_back(trace_->serialise({}));
    if (!blobs.empty())
      write_merged_trace(options_.trace_directory, blobs);
    else if (!control_ || !job_failure_.is_ok() || rank_ == 0)
      write_rank_trace(options_.trace_directory, rank_, trace_->serialise({}));
  } catch (const std::exception& error) {
    logger_.error(error.what());
  }
}

}  // namespace tersum::runtime
