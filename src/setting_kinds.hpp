// What kinds of settings there are: how each is read, written and checked. The table itself is in
// config.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tersum/config.hpp"

namespace tersum {

enum class SettingKind {
  Integer,
  Unsigned,  ///< any 64-bit value
  Bytes,
  Milliseconds,
  Microseconds,
  Choice,
  Text,      ///< one line
  Secret,    ///< text that is never shown
  Endpoint,  ///< host:port
  Spec,      ///< of a compressor
  Rules,     ///< compressors by name of the gradient
};

using SettingMember =
    std::variant<int Config::*, std::uint64_t Config::*, std::string Config::*,
                 std::chrono::milliseconds Config::*, std::chrono::microseconds Config::*>;

/// One row of the table: all that is known of a setting.
struct SettingRow {
  std::string_view variable;
  SettingKind kind = SettingKind::Text;
  SettingMember member;
  bool must_agree = false;
  std::int64_t minimum = 0;  ///< of numbers; of texts: shortest length
  std::int64_t maximum = 0;  ///< of numbers; of texts: longest length
  std::vector<std::string> choices;
  std::string_view help;
};

/// Name of a kind, for people: "milliseconds".
std::string_view to_string(SettingKind kind) noexcept;

/// Range or choices, for people: "1 to 86400000".
std::string allowed_text(const SettingRow& row);

/// The value of `row` in `config`, as it would be written in the environment (the secret too).
std::string value_text(const SettingRow& row, const Config& config);

/// The same in one spelling for all values that mean the same, for comparing: specs have all their
/// parameters. A value that is not allowed stays as it is.
std::string agreed_text(const SettingRow& row, const Config& config);

/// Sets the member of `row` from `text`. False, and nothing is changed, if it cannot be read.
bool read_value(const SettingRow& row, const std::string& text, Config& config);

/// What is wrong with the value of `row` in `config`, or nullopt. Never names the secret's value.
std::optional<std::string> value_problem(const SettingRow& row, const Config& config);

/// The message for a value that cannot be read or is not allowed.
std::string bad_value_text(const SettingRow& row, const std::string& text,
                           const std::string& reason = {});

}  // namespace tersum
