// Compressors on the device: the same bytes as their CPU forms, from and to device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cuda/buffer.hpp"
#include "cuda/stream.hpp"
#include "cuda/twin_state.hpp"
#include "tersum/compressor.hpp"

namespace tersum::gpu {

/// What decoders found wrong with payloads: one word on the device that they set, and a copy on the
/// host. While it is set, every decoder that is given it leaves its output alone. Lives as long as
/// work that uses it.
class DecodeStatus {
 public:
  /// Clear (in `stream`). Allocates.
  explicit DecodeStatus(StreamView stream);

  /// For kernels: 0, or a Fault below.
  std::uint32_t* device() const noexcept { return word_.as<std::uint32_t>(); }
  /// Forgets what was found, in the order of `stream`.
  void clear(StreamView stream) const;
  /// Copies the word to the host. Does not block: status() is right when `stream` is done.
  void fetch(StreamView stream) const;
  /// Ok, or Protocol and what the first bad payload had. As of the last fetch().
  Status status() const;

  enum Fault : std::uint32_t { kNone = 0, kHeader = 1, kScale = 2, kPadding = 3, kIndices = 4 };

 private:
  DeviceBuffer word_;
  PinnedBuffer copy_;
};

/// What a twin is to know of a slice. The step may be on the device: kernels read it when they run,
/// so that replays of a graph draw fresh numbers.
struct TwinContext : SliceContext {
  TwinContext(const SliceContext& context = {},  // NOLINT: as good as the context
              const std::uint64_t* step_on_device = nullptr)
      : SliceContext(context), device_step(step_on_device) {}

  const std::uint64_t* device_step;  ///< if it is not null: the step, in place of `step`
};

/// The device form of one compressor with its parameters: immutable, shared, re-entrant. All calls
/// put work into a stream of the current device and return; none allocates or blocks the host, and
/// all can be captured into a graph (which repeats the context and the state's buffers of the time
/// of capture, but reads a step on the device afresh). Payloads are byte for byte those of the CPU
/// for the same input, state and context, so either side decodes what the other wrote. Memory that
/// is passed in is the caller's and stays valid until the work is done.
///
/// Payloads are 16-byte aligned. fp32 arrays need 4-byte alignment; 16 is faster.
class Twin {
 public:
  virtual ~Twin() = default;

  /// The twin of a built-in compressor, recognised by its canonical spec; null if it has none.
  static std::unique_ptr<Twin> make(const Compressor& compressor);

  /// Bytes of the payload of `count` elements, exactly: max_payload_bytes() of the compressor. So
  /// the host knows every size without asking the device.
  virtual std::size_t payload_bytes(std::size_t count) const = 0;

  /// Arrays of the state: 0, or 1 with "+ef", or 2 with "+momentum".
  std::size_t state_arrays() const noexcept { return arrays_; }
  /// State for a gradient of `count` elements, cleared in `stream`. For methods without arrays it
  /// holds hints only and may be left out.
  std::unique_ptr<TwinState> make_state(
      std::size_t count, StreamView stream,
      TwinState::Steps steps = TwinState::Steps::Provisional) const;

  /// Device memory that the calls below need for `count` elements; 256-byte aligned, contents
  /// undefined, not shared by calls that may run at the same time. May be 0.
  virtual std::size_t workspace_bytes(std::size_t count) const = 0;

  /// Encodes `input` [count] into `payload` [payload_bytes(count)]; next values of `state` are
  /// written for the elements from context.offset on. Error InvalidArgument if the state or the
  /// workspace does not fit, Unsupported beyond the format's limits.
  void compress(StreamView stream, const float* input, std::size_t count,
                const TwinContext& context, TwinState* state, std::byte* payload,
                std::span<std::byte> workspace) const;

  /// Decodes a payload of `payload_bytes` bytes to `output` [count]. The bytes are not trusted:
  /// they are checked on the device before anything is written; a bad payload sets `status`, and
  /// output stays as it was. Error Protocol at once if the size cannot be right.
  void decompress(StreamView stream, std::span<const std::byte> payload, const TwinContext& context,
                  float* output, std::size_t count, std::span<std::byte> workspace,
                  const DecodeStatus& status) const;

  /// accumulator [count] += scale * decoded, rounded after the product and after the sum; otherwise
  /// as decompress().
  void decompress_add(StreamView stream, std::span<const std::byte> payload,
                      const TwinContext& context, float scale, float* accumulator,
                      std::size_t count, std::span<std::byte> workspace,
                      const DecodeStatus& status) const;

  /// Sparse methods: values[i] = 0 for every element i that the payload carries; others: nothing.
  void clear_sent(StreamView stream, std::span<const std::byte> payload, const TwinContext& context,
                  float* values, std::size_t count, std::span<std::byte> workspace,
                  const DecodeStatus& status) const;

 protected:
  /// What compress() works on. residual and velocity are null where the method has none.
  struct Input {
    const float* gradient;
    std::size_t count;
    const float* residual;
    float* residual_next;
    const float* velocity;
    float* velocity_next;
    float momentum;
    std::uint32_t* hint;        ///< TwinState::hint(), or null
    const std::uint32_t* mask;  ///< TwinState's masks, or null
    std::uint32_t* mask_next;
  };
  enum class Apply { Set, Add, Clear };
  /// What a decoder works on.
  struct Output {
    const std::byte* payload;
    float* values;
    std::size_t count;
    float scale;
    std::uint32_t* fault;
  };

  Twin(std::string spec, std::size_t arrays, float momentum)
      : spec_(std::move(spec)), arrays_(arrays), momentum_(momentum) {}

  /// True for methods whose states have masks: they always work on whole gradients.
  virtual bool masks_sent() const { return false; }
  virtual void encode(StreamView stream, const Input& input, const TwinContext& context,
                      std::byte* payload, std::byte* workspace) const = 0;
  virtual void decode(StreamView stream, Apply apply, const Output& output,
                      const TwinContext& context, std::byte* workspace) const = 0;

 private:
  void decode_checked(StreamView stream, Apply apply, std::span<const std::byte> payload,
                      const TwinContext& context, const Output& output,
                      std::span<std::byte> workspace) const;
  void check_workspace(std::size_t count, std::span<std::byte> workspace) const;

  std::string spec_;
  std::size_t arrays_;
  float momentum_;
};

}  // namespace tersum::gpu
