#include "src/trace.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace tersum {
namespace {

std::int64_t nanoseconds(Trace::Clock::time_point time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

void Trace::add(std::string_view lane, std::string_view name, std::string_view category,
                std::int64_t begin_ns, std::int64_t end_ns, TraceArguments&& arguments) noexcept {
  try {
    Record record{std::string(lane),   std::string(name), std::string(category), begin_ns, end_ns,
                  std::move(arguments)};
    Record oldest;  // its memory is freed outside of the lock
    const std::lock_guard lock(mutex_);
    if (records_.size() == capacity_) {
      oldest = std::move(records_.front());
      records_.pop_front();
      ++dropped_;
    }
    records_.push_back(std::move(record));
  } catch (...) {
    ++dropped_;
  }
}

void Trace::span(std::string_view lane, std::string_view name, std::string_view category,
                 Clock::time_point begin, Clock::time_point end,
                 TraceArguments arguments) noexcept {
  if (!enabled_) return;
  const std::int64_t begin_ns = nanoseconds(begin);
  add(lane, name, category, begin_ns, std::max(begin_ns, nanoseconds(end)), std::move(arguments));
}

void Trace::stage(Stage stage, Clock::time_point begin, Clock::time_point end,
                  TraceArguments arguments) noexcept {
  if (!enabled_) return;
  char lane[32];
  std::snprintf(lane, sizeof lane, "slice %lld", static_cast<long long>(arguments.slice));
  span(lane, to_string(stage), "slice", begin, end, std::move(arguments));
}

void Trace::instant(std::string_view lane, std::string_view name, std::string_view category,
                    TraceArguments arguments) noexcept {
  if (!enabled_) return;
  const std::int64_t time = nanoseconds(Clock::now());
  add(lane, name, category, time, time - 1, std::move(arguments));
}

std::size_t Trace::recorded_count() const {
  const std::lock_guard lock(mutex_);
  return records_.size();
}

std::size_t Trace::dropped_count() const {
  return dropped_;
}

std::vector<std::byte> Trace::serialise(std::chrono::nanoseconds clock_offset) const {
  if (!enabled_) return {};
  nlohmann::json records = nlohmann::json::array();
  {
    const std::lock_guard lock(mutex_);
    for (const Record& r : records_) {
      records.push_back(
          nlohmann::json::array({r.lane, r.name, r.category, r.begin_ns + clock_offset.count(),
                                 r.end_ns + clock_offset.count(), r.arguments.key,
                                 r.arguments.slice, r.arguments.bytes}));
    }
  }
  const nlohmann::json blob = {
      {"rank", rank_}, {"dropped", dropped_.load()}, {"records", std::move(records)}};
  // Keys are the user's bytes; what is not UTF-8 is replaced rather than refused.
  const std::string text = blob.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

}  // namespace tersum
