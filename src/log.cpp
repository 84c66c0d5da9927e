#include "src/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>

#include "tersum/error.hpp"

namespace tersum {
namespace {

struct LevelName {
  std::string_view name;
  LogLevel level;
};
constexpr std::array<LevelName, 6> kLevelNames = {{{"trace", LogLevel::Trace},
                                                   {"debug", LogLevel::Debug},
                                                   {"info", LogLevel::Info},
                                                   {"warn", LogLevel::Warn},
                                                   {"error", LogLevel::Error},
                                                   {"off", LogLevel::Off}}};

LogLevel parse_level(std::string_view text) {
  for (const LevelName& entry : kLevelNames) {
    if (entry.name == text) return entry.level;
  }
  throw Error(Code::InvalidArgument,
              "TERSUM_LOG: \"" + std::string(text) +
                  "\" is not a level; allowed: trace, debug, info, warn, error, off");
}

spdlog::level::level_enum to_spdlog(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::Trace:
      return spdlog::level::trace;
    case LogLevel::Debug:
      return spdlog::level::debug;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warn:
      return spdlog::level::warn;
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

class Logger::Sink {
 public:
  explicit Sink(int rank)
      : logger_(rank < 0 ? "tersum" : "tersum rank " + std::to_string(rank),
                std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger_.set_level(spdlog::level::trace);  // Logger has decided before it asks
    logger_.set_pattern("[%n] %H:%M:%S.%e %l: %v");
    logger_.flush_on(spdlog::level::trace);
  }

  // The message is data: it never passes through a format string.
  void write(LogLevel level, std::string_view message) {
    logger_.log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
  }

 private:
  spdlog::logger logger_;
};

Logger::Logger(std::string_view level, int rank)
    : level_(parse_level(level)), sink_(std::make_shared<Sink>(rank)) {}

void Logger::write(LogLevel level, std::string_view message) const noexcept {
  if (!enabled(level)) return;
  try {
    sink_->write(level, message);
  } catch (...) {  // a lost log line must not end a job
  }
}

}  // namespace tersum
