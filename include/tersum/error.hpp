// Error codes, Status and Error: the one way in which Tersum says that something went wrong.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tersum {

/// What kind of thing went wrong. Values are part of the C ABI and never change.
enum class Code : int {
  Ok = 0,
  InvalidArgument =
      1,             ///< a value that the caller gave is wrong; the message names it and the remedy
  InvalidState = 2,  ///< a call that is not allowed now (after abort, before submit, ...)
  Unsupported = 3,   ///< right in itself, but this build or this method cannot do it
  OutOfMemory = 4,
  Timeout =
      5,  ///< a deadline passed; the message names the operation, its stage and who is missing
  PeerLost = 6,   ///< a rank died, hung or left; Status::rank() names it
  Mismatch = 7,   ///< ranks disagree about a call, a plan or a setting; the message has both views
  Protocol = 8,   ///< bytes from the wire that cannot be right
  Aborted = 9,    ///< ended on request, or because its communicator is gone
  System = 10,    ///< the operating system or a library refused; the foreign code is in the message
  Internal = 11,  ///< a fault of Tersum
};

/// Name of a code, for messages: "PeerLost".
constexpr std::string_view to_string(Code code) noexcept {
  switch (code) {
    case Code::Ok:
      return "Ok";
    case Code::InvalidArgument:
      return "InvalidArgument";
    case Code::InvalidState:
      return "InvalidState";
    case Code::Unsupported:
      return "Unsupported";
    case Code::OutOfMemory:
      return "OutOfMemory";
    case Code::Timeout:
      return "Timeout";
    case Code::PeerLost:
      return "PeerLost";
    case Code::Mismatch:
      return "Mismatch";
    case Code::Protocol:
      return "Protocol";
    case Code::Aborted:
      return "Aborted";
    case Code::System:
      return "System";
    case Code::Internal:
      return "Internal";
  }
  return "Unknown";
}

/// Outcome of something that ends later: code, message, origin, and the rank at fault if one is
/// known. A value type; safe to copy between threads.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, std::string origin = {}, int rank = -1)
      : code_(code), rank_(rank), message_(std::move(message)), origin_(std::move(origin)) {}

  static Status ok() { return {}; }

  bool is_ok() const noexcept { return code_ == Code::Ok; }
  Code code() const noexcept { return code_; }
  /// What happened, and what can be done about it.
  const std::string& message() const noexcept { return message_; }
  /// Where it was noticed: "rank 0, all_reduce #12, Exchanging". May be empty.
  const std::string& origin() const noexcept { return origin_; }
  /// World rank of the process at fault, or -1 when no single one is known.
  int rank() const noexcept { return rank_; }

  /// The same status with an origin, unless it has one already: the first place that noticed wins.
  Status at(std::string origin) const {
    Status copy = *this;
    if (copy.origin_.empty()) copy.origin_ = std::move(origin);
    return copy;
  }

  /// "PeerLost: rank 2 died (rank 0, all_reduce #12, Exchanging)".
  std::string to_string() const {
    std::string text(tersum::to_string(code_));
    if (!message_.empty()) text += ": " + message_;
    if (!origin_.empty()) text += " (" + origin_ + ")";
    return text;
  }

 private:
  Code code_ = Code::Ok;
  int rank_ = -1;
  std::string message_;
  std::string origin_;
};

/// The one exception type of Tersum; thrown in the caller's thread only.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.to_string()), status_(std::move(status)) {}
  Error(Code code, std::string message) : Error(Status(code, std::move(message))) {}

  const Status& status() const noexcept { return status_; }
  Code code() const noexcept { return status_.code(); }

 private:
  Status status_;
};

}  // namespace tersum
