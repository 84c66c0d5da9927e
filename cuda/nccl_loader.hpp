// NCCL, loaded at run time, to be measured against. Tersum itself never uses it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "cuda/stream.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

/// What ncclGetUniqueId makes: 128 bytes, passed by value.
struct NcclId {
  std::array<char, 128> bytes;
};

/// One rank of an NCCL communicator, with the calls of PeerCommunicator. Calls enqueue and return;
/// they may be captured. Not thread-safe.
class NcclCommunicator {
 public:
  /// Loads `library` ("libnccl.so.2", or a path). Error Unsupported if it cannot be loaded or
  /// lacks a function.
  static NcclId new_id(const std::string& library);
  /// Collective. For the device that is current now.
  NcclCommunicator(const std::string& library, int rank, int size, NcclId id);
  /// All graphs that captured its calls are destroyed before.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// "2.28.9".
  std::string version() const;

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
  struct Library;
  std::unique_ptr<Library> library_;
  void* communicator_ = nullptr;
  int size_;
};

}  // namespace tersum::gpu
