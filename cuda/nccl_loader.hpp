// NCCL, loaded at run time: only to be measured against (bench). Tersum itself never uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// What ncclGetUniqueId makes: 128 bytes, passed by value.
struct NcclId {
  std::array<char, 128> bytes;
};

/// Where NCCL may be, most usual first: its name alone, for the loader's own search, then what
/// exists below `root` of the places where toolkits and Python's package nvidia-nccl put it.
std::vector<std::string> nccl_places(const std::filesystem::path& root = "/");

/// The library, loaded for as long as the process runs. Any thread.
class NcclLibrary {
 public:
  /// Loads `path`, or the first of nccl_places() if it is empty. Error Unsupported if there is none
  /// or it lacks a function.
  static std::shared_ptr<const NcclLibrary> load(const std::string& path);
  ~NcclLibrary();

  NcclId new_id() const;
  /// "2.28.9".
  std::string version() const;
  /// As it was loaded.
  const std::string& path() const noexcept { return path_; }

 private:
  friend class NcclCommunicator;
  struct Functions;
  NcclLibrary(std::string path, void* handle);

  std::string path_;
  std::unique_ptr<const Functions> functions_;
};

/// One rank of an NCCL communicator, with the calls of PeerCommunicator. Calls enqueue and return;
/// they may be captured. Error Unsupported for dtypes that NCCL lacks. Not thread-safe.
class NcclCommunicator {
 public:
  /// Collective: `id` is rank 0's. For the device that is current now; each rank needs its own.
  NcclCommunicator(std::shared_ptr<const NcclLibrary> library, int rank, int size, NcclId id);
  /// All graphs that captured its calls are destroyed before.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const NcclLibrary& library() const noexcept { return *library_; }

  void all_reduce(const void* in, void* out, std::size_t count, DType dtype, ReduceOp op,
                  StreamView stream);
  void reduce_scatter(const void* in, void* out, std::size_t count, DType dtype, ReduceOp op,
                      StreamView stream);
  void all_gather(const void* in, void* out, std::size_t count, DType dtype, StreamView stream);
  void broadcast(const void* in, void* out, std::size_t count, DType dtype, int root,
                 StreamView stream);
  void reduce(const void* in, void* out, std::size_t count, DType dtype, ReduceOp op, int root,
              StreamView stream);
  void all_to_all(const void* in, void* out, std::size_t count, DType dtype, StreamView stream);
  void send_receive(const void* in, int to, void* out, int from, std::size_t count, DType dtype,
                    StreamView stream);

 private:
  const NcclLibrary::Functions& functions() const noexcept { return *library_->functions_; }

  std::shared_ptr<const NcclLibrary> library_;
  void* communicator_ = nullptr;
  int size_;
};

}  // namespace tersum::gpu
