// Log lines of one rank, on stderr. The only door to the logging library (log.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tersum {

enum class LogLevel : std::uint8_t { Trace, Debug, Info, Warn, Error, Off };

/// Writes lines such as "[tersum rank 2] 12:00:01.250 warn: rank 1 is silent" to stderr. A cheap
/// shared handle; any thread; never throws. Several loggers of one process do not mix their lines.
/// Nothing secret is ever handed to it.
class Logger {
 public:
  /// `level`: a value of TERSUM_LOG; Error InvalidArgument for any other. rank -1: not known yet,
  /// prefix "[tersum]".
  explicit Logger(std::string_view level = "off", int rank = -1);

  /// Ask first when making the message costs something.
  bool enabled(LogLevel level) const noexcept { return level >= level_ && level != LogLevel::Off; }

  void write(LogLevel level, std::string_view message) const noexcept;
  void trace(std::string_view message) const noexcept { write(LogLevel::Trace, message); }
  void debug(std::string_view message) const noexcept { write(LogLevel::Debug, message); }
  void info(std::string_view message) const noexcept { write(LogLevel::Info, message); }
  void warn(std::string_view message) const noexcept { write(LogLevel::Warn, message); }
  void error(std::string_view message) const noexcept { write(LogLevel::Error, message); }

 private:
  class Sink;
  LogLevel level_;
  std::shared_ptr<Sink> sink_;
};

}  // namespace tersum
