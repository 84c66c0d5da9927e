#include "exchange/trace_file.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <type_traits>

#include "tersum/error.hpp"

namespace tersum::replay {
namespace {

std::vector<std::string> fields_of(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  return fields;
}

class TraceReader {
 public:
  explicit TraceReader(const std::string& path) : path_(path), file_(path) {
    if (!file_) throw Error(Code::InvalidArgument, "cannot read " + path);
  }

  std::vector<TracedGradient> read() {
    const auto header = next();
    if (header.empty()) refuse("is empty; it needs the columns name, numel and gap_us");
    const std::size_t name = column(header, "name"), count = column(header, "numel"),
                      gap = column(header, "gap_us");
    std::vector<TracedGradient> gradients;
    for (auto fields = next(); !fields.empty(); fields = next()) {
      if (fields.size() <= std::max({name, count, gap})) refuse("has too few columns");
      TracedGradient gradient;
      gradient.name = fields[name];
      gradient.count = number<std::size_t>(fields[count], 1);
      gradient.time =
          std::chrono::nanoseconds(static_cast<long>(number<double>(fields[gap], 0) * 1e3));
      gradients.push_back(std::move(gradient));
    }
    if (gradients.empty()) refuse("holds no gradient");
    return gradients;
  }

 private:
  static constexpr double kLargest = 1e12;

  /// Fields of the next line that is not blank; none at the end of the file.
  std::vector<std::string> next() {
    for (std::string line; std::getline(file_, line);) {
      ++line_;
      auto fields = fields_of(line);
      if (!fields.empty()) return fields;
    }
    return {};
  }
  std::size_t column(const std::vector<std::string>& header, const std::string& name) const {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found == header.end()) refuse("has no column " + name);
    return static_cast<std::size_t>(found - header.begin());
  }
  /// All of `field` as a number from `least` to kLargest.
  template <class Number>
  Number number(const std::string& field, Number least) const {
    Number value{};
    const auto [end, code] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (code == std::errc() && end == field.data() + field.size() && value >= least &&
        static_cast<double>(value) <= kLargest)
      return value;
    refuse("'" + field + "' is no " + (std::is_integral_v<Number> ? "whole " : "") +
           "number from " + std::to_string(static_cast<int>(least)) + " to 1e12");
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Code::InvalidArgument, path_ + ", line " + std::to_string(line_) + ": " + what);
  }

  const std::string path_;
  std::ifstream file_;
  int line_ = 0;
};

}  // namespace

std::vector<TracedGradient> read_trace(const std::string& path) {
  return TraceReader(path).read();
}

}  // namespace tersum::replay
