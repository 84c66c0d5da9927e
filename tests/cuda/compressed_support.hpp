// Ranks of compressed all-reduces under test, and what these must give, by the CPU's compressors.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "conformance/compressors_support.hpp"
#include "cuda/buffer.hpp"
#include "cuda/collective_support.hpp"
#include "cuda/compressed.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu::test {

using tersum::test::Floats;

/// The exchange of the host (src/exchange), without its wire: all ranks' parts, one after the
/// other.
class HostExchange {
 public:
  HostExchange(const std::string& spec, std::size_t count, int ranks);

  const std::shared_ptr<const Compressor>& compressor() const { return compressor_; }
  /// The result of one committed step; input of every rank.
  Floats step(const std::vector<Floats>& inputs, ReduceOp op, const SliceContext& context);
  /// State of a rank, as CompressorState::save() gives it; empty if there is none.
  std::vector<std::byte> saved(int rank) const;
  std::vector<std::byte> saved_reducer(int rank) const;

 private:
  struct Part {
    std::unique_ptr<CompressorState> state, reducer_state;
  };
  Floats recompress(const std::vector<Floats>& inputs, ReduceOp op, const SliceContext& context);
  Floats merge(const std::vector<Floats>& inputs, ReduceOp op, const SliceContext& context);
  Floats decoded(const Compressor& compressor, std::span<const float> values,
                 const SliceContext& context, CompressorState* state) const;

  std::shared_ptr<const Compressor> compressor_, reducer_;
  std::size_t count_;
  std::vector<Part> parts_;
};

struct CompressedCase {
  std::string spec;
  std::size_t count = 0;
  std::string input = "gaussian";  ///< of make_input()
  ReduceOp op = ReduceOp::Sum;
  std::size_t shift = 0;  ///< elements by which tensors are off their alignment
  bool in_place = false;
  int steps = 1;

  std::string to_string() const;
};

/// A rank with its device, stream, communicators and buffers.
class CompressedRank {
 public:
  static constexpr std::size_t kCapacity = std::size_t{24} << 20;  // bytes of a tensor

  CompressedRank(const RankRole& role, int devices, const PeerSettings& settings,
                 const CompressedSettings& compressed);

  CompressedCommunicator& communicator() { return *compressed_; }
  PeerCommunicator& peers() { return *peers_; }
  StreamView stream() const { return *stream_; }
  float* input() const { return input_.as<float>(); }
  float* output() const { return output_.as<float>(); }
  std::span<std::byte> workspace() const { return {workspace_.data(), workspace_.bytes()}; }
  const DecodeStatus& decoded() const { return *decoded_; }
  int rank() const { return role_.rank; }
  int size() const { return role_.size; }
  /// Returns when all ranks have called it.
  void meet() const;

  /// Copies, blocking.
  void write(float* to, const Floats& values) const;
  Floats read(const float* from, std::size_t count) const;

  /// Runs the kernels of a method's twins. CUDA loads a kernel when it is launched first, and that
  /// would wait for those of other ranks on this GPU, which may wait for this one.
  void warm_up(const CompressedMethod& method, std::size_t count) const;

  /// Runs the case and compares every bit, those around the output, and the states with the host's.
  /// Throws std::runtime_error with what differs.
  void check(const CompressedCase& test);

 private:
  RankRole role_;
  std::unique_ptr<DeviceGuard> guard_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<PeerCommunicator> peers_;
  std::unique_ptr<CompressedCommunicator> compressed_;
  DeviceBuffer input_, output_, workspace_;
  std::unique_ptr<DecodeStatus> decoded_;
  PinnedBuffer host_;
};

/// Throws std::runtime_error that begins with `what` unless all bits are the same; all NaN are.
void expect_same(const Floats& got, const Floats& wanted, const std::string& what);

/// Inputs of all ranks.
std::vector<Floats> make_inputs(const CompressedCase& test, int ranks, int step);

}  // namespace tersum::gpu::test
