#include "transport/control_text.hpp"

#include <algorithm>
#include <map>

namespace tersum::transport::control {
namespace {

std::map<std::string, std::string> parse_settings(const std::string& text,
                                                  std::vector<std::string>& order) {
  std::map<std::string, std::string> values;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const std::size_t equals = std::min(line.find('='), line.size());
    const std::string name = line.substr(0, equals);
    if (values.emplace(name, equals < line.size() ? line.substr(equals + 1) : "").second) {
      order.push_back(name);
    }
  }
  return values;
}

}  // namespace

std::string settings_difference(const std::string& root_settings, const std::string& settings,
                                int rank) {
  if (root_settings == settings) return {};
  std::vector<std::string> order;
  const auto root = parse_settings(root_settings, order);
  std::vector<std::string> other_order;
  const auto other = parse_settings(settings, other_order);
  for (const auto& name : other_order) {
    if (!root.contains(name)) order.push_back(name);
  }
  const auto view = [](const std::map<std::string, std::string>& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? "does not know it" : "has '" + found->second + "'";
  };
  std::string text;
  for (const auto& name : order) {
    const std::string a = view(root, name);
    const std::string b = view(other, name);
    if (a == b) continue;
    text += (text.empty() ? "" : "; ") + name + " differs: rank 0 " + a + ", rank " +
            std::to_string(rank) + " " + b;
  }
  return text;
}

std::string duration_text(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string name_ranks(const std::vector<int>& ranks, int size) {
  constexpr std::size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) text += " and " + std::to_string(ranks.size() - kShown) + " more";
  return text + " of " + std::to_string(size);
}

}  // namespace tersum::transport::control
