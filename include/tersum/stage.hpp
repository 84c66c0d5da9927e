// The stages on the road of one gradient: log lines, spans, statistics and Work::stage() use these
// words.
#pragma once

#include <cstdint>
#include <string_view>

namespace tersum {

enum class Stage : std::uint8_t {
  Planned = 0,       ///< registered; nothing submitted in this step
  Submitted = 1,     ///< handed to the engine
  Ready = 2,         ///< everything that travels with it has been submitted
  Granted = 3,       ///< priority and credit let it start
  Compressed = 4,    ///< its payload exists
  Exchanging = 5,    ///< payloads move between ranks
  Decompressed = 6,  ///< the result of all ranks is being decoded and scattered
  Done = 7,
  Failed = 8,
};

constexpr std::string_view to_string(Stage stage) noexcept {
  switch (stage) {
    case Stage::Planned:
      return "Planned";
    case Stage::Submitted:
      return "Submitted";
    case Stage::Ready:
      return "Ready";
    case Stage::Granted:
      return "Granted";
    case Stage::Compressed:
      return "Compressed";
    case Stage::Exchanging:
      return "Exchanging";
    case Stage::Decompressed:
      return "Decompressed";
    case Stage::Done:
      return "Done";
    case Stage::Failed:
      return "Failed";
  }
  return "Unknown";
}

}  // namespace tersum
