#include "src/setting_kinds.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <type_traits>

#include "compressors/rules.hpp"
#include "compressors/text.hpp"
#include "src/config.hpp"
#include "tersum/compressor.hpp"
#include "transport/launch.hpp"

namespace tersum {
namespace {

static_assert(std::is_same_v<std::size_t, std::uint64_t>, "one member type serves both");

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // Clang deduces it by itself from 17 on

template <class Integer>
bool parse_integer(const std::string& text, Integer& value) noexcept {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

bool is_number(SettingKind kind) noexcept {
  return kind == SettingKind::Integer || kind == SettingKind::Bytes ||
         kind == SettingKind::Milliseconds || kind == SettingKind::Microseconds;
}

std::int64_t number_of(const SettingRow& row, const Config& config) {
  constexpr std::int64_t kMaximum = std::numeric_limits<std::int64_t>::max();
  return std::visit(
      Overloaded{
          [&](int Config::*m) -> std::int64_t { return config.*m; },
          [&](std::uint64_t Config::*m) -> std::int64_t {
            return static_cast<std::int64_t>(std::min<std::uint64_t>(config.*m, kMaximum));
          },
          [&](std::string Config::*) -> std::int64_t { return 0; },
          [&](std::chrono::milliseconds Config::*m) -> std::int64_t { return (config.*m).count(); },
          [&](std::chrono::microseconds Config::*m) -> std::int64_t { return (config.*m).count(); },
      },
      row.member);
}

/// Why a text that passed the common checks is still wrong for its kind; empty: it is fine.
std::string kind_problem(SettingKind kind, const std::string& text) {
  try {
    if (kind == SettingKind::Spec) (void)make_compressor(text);
    if (kind == SettingKind::Rules) (void)compressors::CompressorRules("none", text, 0);
    if (kind == SettingKind::Endpoint && !text.empty()) (void)transport::parse_endpoint(text);
  } catch (const Error& error) {
    return error.status().message();
  }
  return {};
}

std::optional<std::string> text_problem(const SettingRow& row, const std::string& text) {
  if (row.kind == SettingKind::Choice) {
    if (std::find(row.choices.begin(), row.choices.end(), text) != row.choices.end()) {
      return std::nullopt;
    }
    return bad_value_text(row, text,
                          "did you mean " + compressors::nearest_word(text, row.choices) + "?");
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control)) {
    return bad_value_text(row, text, "it holds control characters");
  }
  const auto length = static_cast<std::int64_t>(text.size());
  if (length < row.minimum || length > row.maximum) {
    return bad_value_text(row, text, "it has " + std::to_string(length) + " characters");
  }
  const std::string reason = kind_problem(row.kind, text);
  if (!reason.empty()) return bad_value_text(row, text, reason);
  return std::nullopt;
}

}  // namespace

std::string_view to_string(SettingKind kind) noexcept {
  switch (kind) {
    case SettingKind::Integer:
    case SettingKind::Unsigned:
      return "integer";
    case SettingKind::Bytes:
      return "bytes";
    case SettingKind::Milliseconds:
      return "milliseconds";
    case SettingKind::Microseconds:
      return "microseconds";
    case SettingKind::Choice:
      return "choice";
    case SettingKind::Text:
    case SettingKind::Secret:
      return "text";
    case SettingKind::Endpoint:
      return "endpoint";
    case SettingKind::Spec:
      return "spec";
    case SettingKind::Rules:
      return "rules";
  }
  return "unknown";
}

std::string allowed_text(const SettingRow& row) {
  switch (row.kind) {
    case SettingKind::Choice:
      return join(row.choices, ", ");
    case SettingKind::Unsigned:
      return "0 to " + std::to_string(std::numeric_limits<std::uint64_t>::max());
    case SettingKind::Bytes:
      return format_bytes(static_cast<std::uint64_t>(row.minimum)) + " to " +
             format_bytes(static_cast<std::uint64_t>(row.maximum)) + " (suffixes K, M, G, T)";
    case SettingKind::Endpoint:
      return "host:port or [address]:port";
    case SettingKind::Spec:
      return "method:key=value,...+decorator";
    case SettingKind::Rules:
      return "pattern=spec; pattern=spec; ...";
    case SettingKind::Text:
    case SettingKind::Secret:
      return (row.minimum > 0 ? std::to_string(row.minimum) + " to " : "up to ") +
             std::to_string(row.maximum) + " characters, no control characters";
    default:
      return std::to_string(row.minimum) + " to " + std::to_string(row.maximum);
  }
}

std::string value_text(const SettingRow& row, const Config& config) {
  if (row.kind == SettingKind::Bytes) {
    return format_bytes(config.*std::get<std::uint64_t Config::*>(row.member));
  }
  if (row.kind == SettingKind::Unsigned) {
    return std::to_string(config.*std::get<std::uint64_t Config::*>(row.member));
  }
  if (is_number(row.kind)) return std::to_string(number_of(row, config));
  return config.*std::get<std::string Config::*>(row.member);
}

std::string agreed_text(const SettingRow& row, const Config& config) {
  const std::string text = value_text(row, config);
  if (!kind_problem(row.kind, text).empty()) return text;
  if (row.kind == SettingKind::Spec) return make_compressor(text)->spec();
  if (row.kind == SettingKind::Rules) return compressors::CompressorRules("none", text, 0).rules();
  return text;
}

bool read_value(const SettingRow& row, const std::string& text, Config& config) {
  if (row.kind == SettingKind::Bytes) {
    return parse_bytes(text, config.*std::get<std::uint64_t Config::*>(row.member));
  }
  const auto read_duration = [&](auto member) {
    std::int64_t count = 0;
    if (!parse_integer(text, count)) return false;
    config.*member = std::decay_t<decltype(config.*member)>(count);
    return true;
  };
  return std::visit(Overloaded{
                        [&](int Config::*m) { return parse_integer(text, config.*m); },
                        [&](std::uint64_t Config::*m) { return parse_integer(text, config.*m); },
                        [&](std::string Config::*m) {
                          config.*m = text;
                          return true;
                        },
                        [&](std::chrono::milliseconds Config::*m) { return read_duration(m); },
                        [&](std::chrono::microseconds Config::*m) { return read_duration(m); },
                    },
                    row.member);
}

std::optional<std::string> value_problem(const SettingRow& row, const Config& config) {
  if (row.kind == SettingKind::Unsigned) return std::nullopt;
  if (!is_number(row.kind)) {
    return text_problem(row, config.*std::get<std::string Config::*>(row.member));
  }
  const std::int64_t number = number_of(row, config);
  if (number >= row.minimum && number <= row.maximum) return std::nullopt;
  return bad_value_text(row, value_text(row, config));
}

std::string bad_value_text(const SettingRow& row, const std::string& text,
                           const std::string& reason) {
  const std::string shown = row.kind == SettingKind::Secret ? "***" : text;
  return std::string(row.variable) + ": \"" + shown + "\" is not allowed" +
         (reason.empty() ? "" : " (" + reason + ")") +
         "; allowed: " + std::string(to_string(row.kind)) + ", " + allowed_text(row);
}

bool parse_bytes(const std::string& text, std::uint64_t& bytes) noexcept {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc{}) return false;
  std::string_view suffix(result.ptr, static_cast<std::size_t>(end - result.ptr));
  int shift = 0;
  if (!suffix.empty()) {
    const std::size_t unit = std::string_view("KMGT").find(suffix.front() & ~0x20);
    if (unit == std::string_view::npos) {
      if (suffix != "B") return false;
    } else {
      shift = 10 * (static_cast<int>(unit) + 1);
      suffix.remove_prefix(1);
      if (!suffix.empty() && suffix != "B" && suffix != "iB") return false;
    }
  }
  if (number > std::numeric_limits<std::uint64_t>::max() >> shift) return false;
  bytes = number << shift;
  return true;
}

std::string format_bytes(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  const std::string number = std::to_string(bytes);
  return unit == 0 ? number : number + "KMGT"[unit - 1];
}

}  // namespace tersum
