// Device memory that a compressor keeps per gradient: residual, velocity, and hints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/buffer.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// What compress() of a twin needs to know from one step to the next: the device's form of
/// CompressorState, with the same contract and the same saved bytes. `arrays` arrays of `count`
/// fp32, each twice: committed values, which a step only reads, and next ones, provisional until
/// commit(). All calls are for the thread that drives the gradient; kernels see them in the order
/// of the streams that they are given.
class TwinState {
 public:
  /// Where next values are kept until commit().
  enum class Steps {
    Provisional,  ///< apart from the committed ones, so that rollback() can forget them
    Final,        ///< in their place: half the memory, no rollback, and a captured step can be
                  ///< replayed. For kernels that write each element after they have read it
  };

  /// Zero at first (the memory is cleared in `stream`). Allocates: make it once per gradient. With
  /// `masked` it has masks.
  TwinState(std::size_t arrays, std::size_t count, StreamView stream, bool masked = false,
            Steps steps = Steps::Provisional);

  std::size_t arrays() const noexcept { return arrays_; }
  std::size_t count() const noexcept { return count_; }

  /// Elements from `offset` on of array `index`: [count - offset], on the device.
  const float* current(std::size_t index, std::size_t offset) const noexcept;
  float* next(std::size_t index, std::size_t offset) const noexcept;

  /// Masked states only: [mask_words()] bits, one per element, first element in the lowest bit.
  /// Where a bit is set, the element of every array is zero whatever the memory of the array holds.
  /// This saves sparse methods from writing single zeros all over memory. The next mask belongs to
  /// the next values; who writes those writes all of it. Null without masks.
  const std::uint32_t* current_mask() const noexcept { return mask(false); }
  std::uint32_t* next_mask() const noexcept { return mask(true); }
  bool masked() const noexcept { return mask_words_ > 0; }
  std::size_t mask_words() const noexcept { return mask_words_; }
  /// mask_words() of a state of `count` elements: they are filled up to a multiple of 512.
  static constexpr std::size_t mask_words_for(std::size_t count) noexcept {
    return (count + 16383) / 16384 * 512 + (count == 0 ? 512 : 0);
  }

  /// All arrays hold next values for `count` elements from `offset` on, when the stream gets there.
  void mark_written(std::size_t offset, std::size_t count);

  /// What a method remembers to be faster, and what no result depends on: kHintWords words on the
  /// device, zero at first. Never saved, not rolled back.
  static constexpr std::size_t kHintWords = 8;
  std::uint32_t* hint() const noexcept;

  /// The next values become the committed ones for all work put into `stream` from now on. Copies
  /// only where a step has left parts unwritten. Does not block the host.
  void commit(StreamView stream);
  /// Forgets the next values, unless steps are final.
  void rollback() noexcept;

  /// Committed values as CompressorState::save() of the same compressor writes them; empty without
  /// arrays. Blocks the host until `stream` is done.
  std::vector<std::byte> save(StreamView stream) const;
  std::size_t saved_bytes() const noexcept;
  /// The other way. Error InvalidArgument, with nothing changed, if `bytes` is not of this shape or
  /// holds an infinity or a NaN. Blocks the host until `stream` is done.
  void load(std::span<const std::byte> bytes, StreamView stream);
  /// The error that load() would throw, if any.
  void validate(std::span<const std::byte> bytes) const;

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  /// Whether the (next) values are in the second half of the memory.
  bool is_second(bool next) const noexcept {
    return steps_ == Steps::Provisional && next != swapped_;
  }
  std::byte* array(std::size_t index, bool next) const noexcept;
  std::uint32_t* mask(bool next) const noexcept;

  std::size_t arrays_;
  std::size_t count_;
  std::size_t stride_;  // bytes from one array to the next
  std::size_t mask_words_;
  Steps steps_;
  bool swapped_ = false;        // which half of `memory_` is committed
  DeviceBuffer memory_;         // hint, then arrays of one half, those of the other, two masks
  std::vector<Range> written_;  // sorted, neither overlapping nor touching
};

}  // namespace tersum::gpu
