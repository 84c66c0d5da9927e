// Timelines: spans of what a rank did and when, merged over ranks into one Chrome trace
// (chrome://tracing, ui.perfetto.dev).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersum/stage.hpp"

namespace tersum {

/// What a span is about; members at their defaults are not written.
struct TraceArguments {
  std::string key;          ///< gradients, comma-separated, or the collective's name
  std::int64_t slice = -1;  ///< index in the plan
  std::int64_t bytes = -1;  ///< uncompressed, or payload: as the span's category says
};

/// Records spans of one rank. Any thread; one short lock for each record. When `capacity` records
/// are held, a new one replaces the oldest and is counted, so memory is bounded and the end of a
/// run, which is what one looks for after a failure, is always there. A disabled trace costs a
/// branch.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kCapacity = 1u << 16;

  explicit Trace(int rank = 0, bool enabled = false, std::size_t capacity = kCapacity)
      : rank_(rank), enabled_(enabled && capacity > 0), capacity_(capacity) {}
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  bool enabled() const noexcept { return enabled_; }

  /// Now, or the clock's zero when disabled: no system call is made for nothing.
  Clock::time_point now() const noexcept { return enabled_ ? Clock::now() : Clock::time_point{}; }

  /// Something took from `begin` to `end`. `lane` is the row it is drawn in ("engine", "pool");
  /// where spans of one lane overlap, it gets further rows. Never throws: a record that memory has
  /// no room for is counted as dropped.
  void span(std::string_view lane, std::string_view name, std::string_view category,
            Clock::time_point begin, Clock::time_point end, TraceArguments arguments = {}) noexcept;

  /// A slice was in `stage` from `begin` to `end`: a span named after the stage in the slice's own
  /// lane.
  void stage(Stage stage, Clock::time_point begin, Clock::time_point end,
             TraceArguments arguments) noexcept;

  /// Something happened.
  void instant(std::string_view lane, std::string_view name, std::string_view category,
               TraceArguments arguments = {}) noexcept;

  std::size_t recorded_count() const;
  std::size_t dropped_count() const;

  /// Everything recorded, as bytes for write_merged_trace(); empty when disabled. `clock_offset`
  /// is added to this process's steady clock to get rank 0's.
  std::vector<std::byte> serialise(std::chrono::nanoseconds clock_offset) const;

 private:
  struct Record {
    std::string lane, name, category;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;  ///< before begin_ns: an instant
    TraceArguments arguments;
  };
  void add(std::string_view lane, std::string_view name, std::string_view category,
           std::int64_t begin_ns, std::int64_t end_ns, TraceArguments&& arguments) noexcept;

  const int rank_;
  const bool enabled_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<Record> records_;  // guarded by mutex_
  std::atomic<std::size_t> dropped_{0};
};

/// Records a span from its construction to its destruction.
class TraceSpan {
 public:
  TraceSpan(Trace& trace, std::string_view lane, std::string_view name, std::string_view category,
            TraceArguments arguments = {})
      : trace_(trace),
        lane_(lane),
        name_(name),
        category_(category),
        arguments_(std::move(arguments)),
        begin_(trace.now()) {}
  ~TraceSpan() {
    trace_.span(lane_, name_, category_, begin_, trace_.now(), std::move(arguments_));
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace& trace_;
  std::string_view lane_, name_, category_;  // literals or what outlives the span
  TraceArguments arguments_;
  Trace::Clock::time_point begin_;
};

/// Makes `directory` if it is missing and proves that files can be written there; Error
/// InvalidArgument names it, TERSUM_TRACE and the system's reason. Call it at start-up.
void prepare_trace_directory(const std::filesystem::path& directory);

/// Writes the blobs of Trace::serialise(), one a rank, as `directory`/timeline.json: one process
/// "rank 2" each, one thread a lane. Empty blobs are left out; one that cannot be read leaves a
/// note in the file. Returns the path. Error System if it cannot be written.
std::filesystem::path write_merged_trace(const std::filesystem::path& directory,
                                         std::span<const std::vector<std::byte>> blobs);

/// The same for a rank that has to write alone (its job failed): `directory`/rank-2.json.
std::filesystem::path write_rank_trace(const std::filesystem::path& directory, int rank,
                                       const std::vector<std::byte>& blob);

}  // namespace tersum
