#include "transport/slurm.hpp"

#include <charconv>
#include <vector>

#include "tersum/error.hpp"

namespace tersum::transport {
namespace {

constexpr int kMost = 65536;

[[noreturn]] void reject(const std::string& message) {
  throw Error(Code::InvalidArgument, message);
}

/// A whole number at the front of `text`, which it is cut from; -1 if there is none.
int take_number(std::string_view& text) {
  int value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || value > kMost) return -1;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// The entry of node `index` in a list like "2(x3),1".
int tasks_of_node(const std::string& variable, const std::string& list, int index) {
  const auto wrong = [&] {
    reject(variable + "='" + list +
           "' is not a list of tasks per node like 2(x3),1 that has node " + std::to_string(index));
  };
  std::string_view rest = list;
  for (int node = 0;;) {
    const int tasks = take_number(rest);
    int repeats = 1;
    if (take(rest, "(x")) {
      repeats = take_number(rest);
      if (!take(rest, ")")) wrong();
    }
    if (tasks < 1 || repeats < 1) wrong();
    if (index < node + repeats) return tasks;
    node += repeats;
    if (!take(rest, ",")) wrong();
  }
}

int plain_number(const std::string& variable, const std::string& value) {
  std::string_view rest = value;
  const int number = take_number(rest);
  if (number < 0 || !rest.empty()) reject(variable + "='" + value + "' is not a whole number");
  return number;
}

}  // namespace

std::string first_host(const std::string& variable, const std::string& node_list) {
  const auto wrong = [&] {
    reject(variable + "='" + node_list + "' is not a list of nodes: set TERSUM_ROOT=host:port");
  };
  std::string host;
  for (std::size_t i = 0; i < node_list.size() && node_list[i] != ',';) {
    if (node_list[i] == ']') wrong();
    if (node_list[i] != '[') {
      host += node_list[i++];
      continue;
    }
    const std::size_t close = node_list.find(']', i);
    if (close == std::string::npos) wrong();
    const std::size_t first_end = node_list.find_first_of("-,]", i + 1);
    if (first_end == i + 1) wrong();
    host += node_list.substr(i + 1, first_end - i - 1);
    i = close + 1;
  }
  if (host.empty()) wrong();
  return host;
}

int slurm_local_size(const Environment& environment, int size) {
  if (const auto list = environment("SLURM_STEP_TASKS_PER_NODE")) {
    const auto node = environment("SLURM_NODEID");
    return tasks_of_node("SLURM_STEP_TASKS_PER_NODE", *list,
                         node ? plain_number("SLURM_NODEID", *node) : 0);
  }
  if (const auto tasks = environment("SLURM_NTASKS_PER_NODE")) {
    return plain_number("SLURM_NTASKS_PER_NODE", *tasks);
  }
  for (const char* nodes : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) {
    if (environment(nodes) == "1") return size;
  }
  reject(
      "SLURM_LOCALID is set but neither SLURM_STEP_TASKS_PER_NODE nor SLURM_NTASKS_PER_NODE is: "
      "set TERSUM_LOCAL_RANK and TERSUM_LOCAL_SIZE");
}

}  // namespace tersum::transport
