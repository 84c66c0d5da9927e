#include "src/tools/run_shared_memory.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace tersum::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoot = "/dev/shm";
constexpr std::string_view kPrefix = "tersum-run-";

/// True for a folder of this user whose tersum-run is no more.
bool is_stale(const fs::path& folder) {
  const std::string name = folder.filename();
  if (!name.starts_with(kPrefix)) return false;
  pid_t owner = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, owner);
  if (error != std::errc() || rest != end || owner <= 0) return false;
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) return false;
  return facts.st_uid == ::geteuid() && ::kill(owner, 0) != 0 && errno == ESRCH;
}

}  // namespace

SharedMemoryFolder::SharedMemoryFolder() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(kRoot, ignored)) {
    if (is_stale(entry.path())) fs::remove_all(entry.path(), ignored);
  }
  const std::string path =
      std::string(kRoot) + "/" + std::string(kPrefix) + std::to_string(::getpid());
  if (::mkdir(path.c_str(), 0700) == 0) path_ = path;
}

SharedMemoryFolder::~SharedMemoryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace tersum::tools
