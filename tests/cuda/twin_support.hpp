// A twin with all that its calls need, beside the CPU compressor that it has to match.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "conformance/compressors_support.hpp"
#include "cuda/buffer.hpp"
#include "cuda/stream.hpp"
#include "cuda/twin.hpp"
#include "tersum/compressor.hpp"

namespace tersum::gpu::test {

using tersum::test::Bytes;
using tersum::test::Floats;

/// Runs a twin on host data: copies there and back, blocking.
class Bench {
 public:
  /// For slices of at most `count` elements; `misalign` elements are left out at the front of every
  /// fp32 array, so that 1 to 3 make it unfit for 16-byte accesses.
  Bench(const std::string& spec, std::size_t count, std::size_t misalign = 0);

  bool has_twin() const { return twin_ != nullptr; }
  const Compressor& cpu() const { return *cpu_; }
  const Twin& twin() const { return *twin_; }
  StreamView stream() const { return stream_; }
  TwinState* state() const { return state_.get(); }

  /// A state for a gradient of `count` elements.
  void make_state(std::size_t count);
  /// The payload of `input`. Checks that nothing is written behind it.
  Bytes compress(std::span<const float> input, const SliceContext& context = {});
  /// Each returns the array after the call; status() tells whether the payload was taken.
  Floats decompress(std::span<const std::byte> payload, std::size_t count,
                    const SliceContext& context = {});
  Floats decompress_add(std::span<const std::byte> payload, Floats accumulator, float scale,
                        const SliceContext& context = {});
  Floats clear_sent(std::span<const std::byte> payload, Floats values,
                    const SliceContext& context = {});
  /// What the calls since the last one found.
  Status status();

 private:
  template <class Call>
  Floats decode(std::span<const std::byte> payload, const Floats& before, const Call& call);

  std::shared_ptr<const Compressor> cpu_;
  std::unique_ptr<Twin> twin_;
  Stream stream_;
  std::size_t misalign_;
  DeviceBuffer floats_;
  DeviceBuffer payload_;
  DeviceBuffer workspace_;
  std::unique_ptr<TwinState> state_;
  DecodeStatus status_;
};

/// Vectors that are hard on a compressor: "gaussian", "zeros", "ties", "nonfinite", "denormals",
/// "huge", "constant", "nan".
const std::vector<std::string>& input_kinds();
Floats make_input(const std::string& kind, std::size_t count, unsigned seed);

/// Bits of floats with every NaN made the same: which NaN an addition gives is not fixed.
std::vector<std::uint32_t> bits_of_sums(std::span<const float> values);

}  // namespace tersum::gpu::test
