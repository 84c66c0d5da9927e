// One rank of a collective under test, and the cases that every group is put through.
#pragma once

#include <span>
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
  /// Runs the cases with fresh values, one right behind the other, and compares every byte, and
  /// those around the outputs, with the host's results. Throws std::runtime_error with what
  /// differs. Each has its part of kCapacity.
  void check_all(std::span<const CollectiveCase> tests, std::uint64_t seed);
  void check(const CollectiveCase& test, std::uint64_t seed) { check_all({&test, 1}, seed); }

 private:
  /// Where a case's tensors are.
  struct Place {
    std::byte *input, *output;
  };
  Place place_of(const CollectiveCase& test, std::size_t offset) const;
  void copy(void* to, const void* from, std::size_t bytes);
  void prepare(const CollectiveCase& test, const Place& place, std::uint64_t seed);
  void compare(const CollectiveCase& test, const Place& place, std::uint64_t seed);
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
