// Output of tersum-run: whole lines of all ranks, each with its rank in front.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tersum::tools {

/// Cuts one stream of a rank into lines and puts a prefix in front of each. A carriage return ends
/// a line too, so that progress bars are seen while they move.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// The lines that `bytes` complete. A line beyond 1 MiB is broken there.
  std::string add(std::string_view bytes);
  /// The last line if it has no end; it gets one, lest another rank's line joins it.
  std::string finish();

 private:
  void complete(std::string& output, std::string_view end);

  std::string prefix_;
  std::string line_;
  bool after_return_ = false;  // a newline right after it belongs to the same line
};

/// Writes to a descriptor shared with others without ever blocking on a slow reader. If the reader
/// is gone, or output cannot be written for another reason, it is dropped.
class OutputSink {
 public:
  explicit OutputSink(int descriptor) : descriptor_(descriptor) {}

  int descriptor() const noexcept { return descriptor_; }
  void add(std::string_view text);
  std::size_t backlog_bytes() const noexcept { return queue_.size() - written_; }
  /// Call when poll() says that the descriptor is writable: writes no more than surely fits.
  void write_some();
  /// Why output was dropped (an errno), other than for want of a reader; 0: it was not.
  int error() const noexcept { return error_; }
  /// Forgets what is queued.
  void drop() noexcept;

 private:
  int descriptor_;
  std::string queue_;
  std::size_t written_ = 0;
  bool closed_ = false;
  int error_ = 0;
};

}  // namespace tersum::tools
