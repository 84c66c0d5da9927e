// The canonical text of a plan. Its hash decides whether two ranks have the same plan, and its
// lines tell people where two plans differ.
#include <string_view>

#include "scheduler/plan.hpp"

namespace tersum::scheduler {
namespace {

/// Appends `text` with control characters, backslashes and (if asked) spaces as \xNN, so that every
/// text stays on its line and different texts stay different.
void append_escaped(std::string& out, std::string_view text, bool escape_space) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    const bool plain =
        byte > 0x20 ? byte != 0x7f && character != '\\' : byte == 0x20 && !escape_space;
    if (plain) {
      out += character;
    } else {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
}

void append_field(std::string& out, std::string_view name, const std::string& value) {
  out += ' ';
  out += name;
  out += '=';
  out += value;
}

void append_gradient(std::string& out, const PlanInput& gradient) {
  out += "gradient ";
  append_escaped(out, gradient.key, true);
  append_field(out, "count", std::to_string(gradient.count));
  append_field(out, "element_bytes", std::to_string(gradient.element_bytes));
  append_field(out, "position", std::to_string(gradient.position));
  append_field(out, "block_count", std::to_string(gradient.block_count));
  append_field(out, "group", "");  // last on the line, because it may hold spaces
  append_escaped(out, gradient.group, false);
  out += '\n';
}

void append_bucket(std::string& out, std::size_t number, const std::vector<std::size_t>& bucket) {
  out += "bucket " + std::to_string(number) + " gradients=";
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(bucket[i]);
  }
  out += '\n';
}

void append_slice(std::string& out, std::size_t number, const Slice& slice) {
  out += "slice " + std::to_string(number);
  append_field(out, "bucket", std::to_string(slice.bucket));
  append_field(out, "priority", std::to_string(slice.priority));
  append_field(out, "bytes", std::to_string(slice.bytes));
  append_field(out, "segments", "");
  for (std::size_t i = 0; i < slice.segments.size(); ++i) {
    const Segment& segment = slice.segments[i];
    if (i > 0) out += ',';
    out += std::to_string(segment.gradient) + '[' + std::to_string(segment.offset) + '+' +
           std::to_string(segment.count) + ']';
  }
  out += '\n';
}

/// Takes the first line off `text`.
std::string_view take_line(std::string_view& text) {
  const std::size_t length = text.find('\n');
  const std::string_view line = text.substr(0, length);
  text = length == std::string_view::npos ? std::string_view{} : text.substr(length + 1);
  return line;
}

}  // namespace

std::string describe(const std::vector<PlanInput>& gradients, const Plan& plan) {
  std::string out;
  for (const PlanInput& gradient : gradients) append_gradient(out, gradient);
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) append_bucket(out, i, plan.buckets[i]);
  for (std::size_t i = 0; i < plan.slices.size(); ++i) append_slice(out, i, plan.slices[i]);
  return out;
}

std::string first_difference(const std::string& mine, const std::string& theirs) {
  if (mine == theirs) return {};
  std::string_view my_rest = mine;
  std::string_view their_rest = theirs;
  while (!my_rest.empty() || !their_rest.empty()) {
    const bool i_ended = my_rest.empty();
    const bool they_ended = their_rest.empty();
    const std::string_view my_line = take_line(my_rest);
    const std::string_view their_line = take_line(their_rest);
    if (my_line == their_line && i_ended == they_ended) continue;
    std::string out = "mine: ";
    out += i_ended ? "(nothing more)" : my_line;
    out += " | theirs: ";
    out += they_ended ? "(nothing more)" : their_line;
    return out;
  }
  return "mine and theirs differ in line ends only";
}

}  // namespace tersum::scheduler
