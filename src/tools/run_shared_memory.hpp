// Where the ranks of one job put their shared memory, so that none of it outlives them.
#pragma once

#include <string>

namespace tersum::tools {

/// A folder in /dev/shm for one job. UCX removes a segment's name as soon as it has made it, but a
/// rank that is killed in between leaves it behind; so the whole folder goes with the job. Folders
/// whose tersum-run was killed itself go when the next one starts.
class SharedMemoryFolder {
 public:
  /// Makes the folder, for this user only. Without /dev/shm there is none.
  SharedMemoryFolder();
  ~SharedMemoryFolder();
  SharedMemoryFolder(const SharedMemoryFolder&) = delete;
  SharedMemoryFolder& operator=(const SharedMemoryFolder&) = delete;

  /// Empty if there is none.
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace tersum::tools
