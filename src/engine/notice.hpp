// Failure notices: how one rank tells the others of an operation or a group why it has failed.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/engine/engine.hpp"

namespace tersum::runtime {

inline constexpr std::size_t kLargestNotice = 16 * 1024;

/// On its way out: message and origin as text, code and rank in the note.
struct Engine::Notice final : transport::Request {
  Notice(const transport::Key& key, const Status& status)
      : text(status.message().substr(0, kLargestNotice / 2) + '\0' +
             status.origin().substr(0, kLargestNotice / 4)) {
    envelope.key = key;
    envelope.key.hop = kFailureHop;
    envelope.note[0] = static_cast<std::uint64_t>(status.code());
    envelope.note[1] = static_cast<std::uint64_t>(static_cast<std::int64_t>(status.rank()));
  }
  void on_complete(const Status&, std::size_t) override { complete = true; }
  ConstBuffer buffer() const { return {text.data(), text.size(), MemoryType::Host, nullptr}; }

  transport::Envelope envelope;
  std::string text;
  bool complete = false;
};

/// On its way in.
struct Engine::NoticeReader final : transport::Request {
  NoticeReader(int sender, const transport::Envelope& head, std::size_t bytes)
      : peer(sender), envelope(head), text(bytes, '\0') {}
  void on_complete(const Status& outcome, std::size_t) override {
    complete = true;
    good = outcome.is_ok();
  }
  /// The sender's status. Codes that do not exist become Protocol: the bytes are not trusted.
  Status status() const {
    const auto zero = std::min(text.find('\0'), text.size());
    const std::string origin = zero < text.size() ? text.substr(zero + 1) : std::string();
    const auto code = envelope.note[0];
    const bool known = code > 0 && code <= static_cast<std::uint64_t>(Code::Internal);
    return Status(known ? static_cast<Code>(code) : Code::Protocol, text.substr(0, zero), origin,
                  static_cast<int>(static_cast<std::int64_t>(envelope.note[1])));
  }

  const int peer;
  const transport::Envelope envelope;
  std::string text;
  bool posted = false, complete = false, good = false;
};

}  // namespace tersum::runtime
