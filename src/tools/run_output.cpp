#include "src/tools/run_output.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace tersum::tools {
namespace {

constexpr std::size_t kMaxLineBytes = 1u << 20;

}  // namespace

void LinePrefixer::complete(std::string& output, std::string_view end) {
  output += prefix_;
  output += line_;
  output += end;
  line_.clear();
}

std::string LinePrefixer::add(std::string_view bytes) {
  std::string output;
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() == '\n') {
      output += '\n';
      bytes.remove_prefix(1);
      after_return_ = false;
      continue;
    }
    after_return_ = false;
    const std::size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    const std::size_t taken = std::min(end, kMaxLineBytes - line_.size());
    line_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (taken < end) {
      complete(output, "\n");
    } else if (!bytes.empty()) {
      after_return_ = bytes.front() == '\r';
      complete(output, bytes.substr(0, 1));
      bytes.remove_prefix(1);
    }
  }
  return output;
}

std::string LinePrefixer::finish() {
  std::string output;
  if (!line_.empty()) complete(output, "\n");
  return output;
}

void OutputSink::add(std::string_view text) {
  if (!closed_) queue_ += text;
}

void OutputSink::write_some() {
  // A pipe that poll() calls writable takes PIPE_BUF bytes at once.
  const std::size_t count = std::min<std::size_t>(backlog_bytes(), PIPE_BUF);
  const ssize_t written = ::write(descriptor_, queue_.data() + written_, count);
  if (written >= 0) {
    written_ += static_cast<std::size_t>(written);
  } else if (errno != EAGAIN && errno != EINTR) {
    closed_ = true;
    error_ = errno == EPIPE ? 0 : errno;
    drop();
  }
  if (written_ == queue_.size() || written_ > kMaxLineBytes) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

void OutputSink::drop() noexcept {
  queue_.clear();
  written_ = 0;
}

}  // namespace tersum::tools
