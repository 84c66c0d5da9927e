// From recorded blobs to Chrome's trace event format: "X" complete spans and "i" instants in
// microseconds, one process a rank, one thread a lane, named by "M" metadata events.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "src/trace.hpp"
#include "tersum/error.hpp"

namespace tersum {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Shorter names first: "pool", "engine", "slice 2", "slice 10".
struct LaneOrder {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
};

struct ParsedRecord {
  std::string lane, name, category, key;
  std::int64_t begin_ns, end_ns, slice, bytes;
};

struct ParsedBlob {
  int rank = 0;
  std::uint64_t dropped = 0;
  std::vector<ParsedRecord> records;
};

/// Throws json::exception if the bytes are no blob.
ParsedBlob parse(const std::vector<std::byte>& bytes) {
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  const json blob = json::parse(text, text + bytes.size());
  ParsedBlob parsed{blob.at("rank"), blob.at("dropped"), {}};
  for (const json& r : blob.at("records")) {
    parsed.records.push_back(
        {r.at(0), r.at(1), r.at(2), r.at(5), r.at(3), r.at(4), r.at(6), r.at(7)});
  }
  return parsed;
}

/// A list of events that grows in a file.
class EventFile {
 public:
  explicit EventFile(const fs::path& path) : stream_(path, std::ios::trunc) {
    stream_ << R"({"displayTimeUnit":"ms","traceEvents":[)";
  }
  void write(const json& event) {
    stream_ << (first_ ? "\n" : ",\n") << event.dump();
    first_ = false;
  }
  bool close() {
    stream_ << "\n]}\n";
    stream_.close();
    return !stream_.fail();
  }

 private:
  std::ofstream stream_;
  bool first_ = true;
};

void write_name(EventFile& file, const char* kind, int pid, int tid, const std::string& name) {
  file.write({{"ph", "M"}, {"name", kind}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}});
}

void write_record(EventFile& file, int pid, int tid, const ParsedRecord& record) {
  json arguments = json::object();
  if (!record.key.empty()) arguments["key"] = record.key;
  if (record.slice >= 0) arguments["slice"] = record.slice;
  if (record.bytes >= 0) arguments["bytes"] = record.bytes;
  json event = {{"name", record.name},
                {"cat", record.category},
                {"pid", pid},
                {"tid", tid},
                {"ts", static_cast<double>(record.begin_ns) / 1e3},
                {"args", std::move(arguments)}};
  if (record.end_ns < record.begin_ns) {
    event["ph"] = "i";
    event["s"] = "t";
  } else {
    event["ph"] = "X";
    event["dur"] = static_cast<double>(record.end_ns - record.begin_ns) / 1e3;
  }
  file.write(event);
}

/// Viewers draw a thread's spans as a call stack, so spans that overlap need threads of their own:
/// each record gets the first row of its lane that is free when it begins. Returns the row's name
/// for each record; the records come back sorted by their begin.
std::vector<std::string> assign_rows(std::vector<ParsedRecord>& records) {
  std::stable_sort(
      records.begin(), records.end(),
      [](const ParsedRecord& a, const ParsedRecord& b) { return a.begin_ns < b.begin_ns; });
  std::map<std::string, std::vector<std::int64_t>> row_ends;
  std::vector<std::string> rows;
  rows.reserve(records.size());
  for (const ParsedRecord& record : records) {
    std::vector<std::int64_t>& ends = row_ends[record.lane];
    const bool instant = record.end_ns < record.begin_ns;
    std::size_t row = 0;
    while (!instant && row < ends.size() && ends[row] > record.begin_ns) ++row;
    if (row == ends.size()) ends.push_back(record.begin_ns);
    if (!instant) ends[row] = record.end_ns;
    rows.push_back(row == 0 ? record.lane : record.lane + " (" + std::to_string(row + 1) + ")");
  }
  return rows;
}

void write_rank(EventFile& file, ParsedBlob blob) {
  std::string process = "rank " + std::to_string(blob.rank);
  if (blob.dropped > 0) {
    process += " (" + std::to_string(blob.dropped) + " oldest records dropped)";
  }
  write_name(file, "process_name", blob.rank, 0, process);
  file.write({{"ph", "M"},
              {"name", "process_sort_index"},
              {"pid", blob.rank},
              {"tid", 0},
              {"args", {{"sort_index", blob.rank}}}});
  const std::vector<std::string> rows = assign_rows(blob.records);
  std::map<std::string, int, LaneOrder> threads;
  for (const std::string& row : rows) threads.emplace(row, 0);
  int tid = 0;
  for (auto& [row, number] : threads) {
    number = ++tid;
    write_name(file, "thread_name", blob.rank, number, row);
    file.write({{"ph", "M"},
                {"name", "thread_sort_index"},
                {"pid", blob.rank},
                {"tid", number},
                {"args", {{"sort_index", number}}}});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    write_record(file, blob.rank, threads.at(rows[i]), blob.records[i]);
  }
}

fs::path write_blobs(const fs::path& directory, const std::string& name,
                     std::span<const std::vector<std::byte>> blobs, int first_rank) {
  fs::path path = directory / name;
  const fs::path unfinished = directory / ("." + name + "." + std::to_string(::getpid()));
  EventFile file(unfinished);
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    if (blobs[i].empty()) continue;
    try {
      write_rank(file, parse(blobs[i]));
    } catch (const json::exception&) {
      const int rank = first_rank + static_cast<int>(i);
      write_name(file, "process_name", rank, 0,
                 "rank " + std::to_string(rank) + " (its trace could not be read)");
    }
  }
  std::error_code error;
  const bool written = file.close();
  if (written) fs::rename(unfinished, path, error);
  if (!written || error) {
    std::error_code ignored;
    fs::remove(unfinished, ignored);
    throw Error(Code::System, "cannot write the timeline " + path.string() + ": " +
                                  (error ? error.message() : "the file system refused"));
  }
  return path;
}

}  // namespace

void prepare_trace_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) {
    // Only writing proves that one can write: permissions do not tell of every file system.
    const fs::path probe = directory / (".tersum-probe." + std::to_string(::getpid()));
    const int descriptor = ::open(probe.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (descriptor < 0) {
      error = std::error_code(errno, std::generic_category());
    } else {
      ::close(descriptor);
      ::unlink(probe.c_str());
    }
  }
  if (error) {
    throw Error(Code::InvalidArgument, "TERSUM_TRACE: cannot write timelines into \"" +
                                           directory.string() + "\": " + error.message() +
                                           "; give a directory that can be made and written");
  }
}

fs::path write_merged_trace(const fs::path& directory,
                            std::span<const std::vector<std::byte>> blobs) {
  return write_blobs(directory, "timeline.json", blobs, 0);
}

fs::path write_rank_trace(const fs::path& directory, int rank, const std::vector<std::byte>& blob) {
  return write_blobs(directory, "rank-" + std::to_string(rank) + ".json", {&blob, 1}, rank);
}

}  // namespace tersum
