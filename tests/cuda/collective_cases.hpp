// One rank of a collective under test, and the cases that every group is put through.
#pragma once

#include <string>

#include "cuda/buffer.hpp"
#include "cuda/collective_reference.hpp"
#include "cuda/collective_support.hpp"
#include "cuda/collectives.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

enum class Collective { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, AllToAll, Shift };
inline constexpr int kCollectiveCount = 7;

struct CollectiveCase {
  Collective kind = Collective::AllReduce;
  std::size_t count = 1;
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  Algorithm algorithm = Algorithm::Auto;
  Scales scales;
  int root = 0;
  std::size_t shift = 0;  ///< elements by which the tensors are off their alignment
  bool in_place = false;

  std::string to_string() const;
};

/// A rank with its device, stream, communicator and buffers. Everything is allocated at once:
/// an allocation while kernels wait for peers could wait for them.
class CollectiveRank {
 public:
  /// Most bytes of a whole tensor in a case.
  static constexpr std::size_t kCapacity = std::size_t{40} << 20;

  CollectiveRank(const RankRole& role, int devices, const PeerSettings& settings);

  PeerCommunicator& communicator() { return *communicator_; }
  StreamView stream() const { return *stream_; }
  std::byte* input() const { return input_.data(); }
  std::byte* output() const { return output_.data(); }
  int rank() const { return role_.rank; }
  int size() const { return role_.size; }

  /// Puts the case's operation into the stream.
  void submit(const CollectiveCase& test, const std::byte* input, std::byte* output);
  /// Runs the case with fresh values and compares every byte, and those around the output, with
  /// the host's result. Throws std::runtime_error with what differs.
  void check(const CollectiveCase& test, std::uint64_t seed);

 private:
  HostTensor expected(const CollectiveCase& test, std::uint64_t seed) const;

  RankRole role_;
  std::unique_ptr<DeviceGuard> guard_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<PeerCommunicator> communicator_;
  DeviceBuffer input_, output_;
  PinnedBuffer host_;
};

/// All collectives x all dtypes x all ops x counts, alignments, in place or not, with `algorithm`.
void check_everything(CollectiveRank& rank, Algorithm algorithm, Algorithm all_reduce_algorithm);

}  // namespace tersum::gpu
