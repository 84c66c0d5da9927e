// Per-gradient arrays that change step by step: what a step writes is provisional until commit().
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "tersum/compressor.hpp"

namespace tersum::compressors {

/// `arrays` arrays of `count` fp32 elements, zero at first, each twice: the committed values, which
/// are only read in a step, and the next ones. Parts that a step has not written keep their
/// committed values. Disjoint parts may be read and written by several threads at once; commit(),
/// rollback(), save() and load() need the steps to be over.
class StepBuffers final : public CompressorState {
 public:
  /// `inner` is the state of a wrapped compressor, or null; it follows all calls.
  StepBuffers(std::size_t arrays, std::size_t count, std::unique_ptr<CompressorState> inner);

  std::size_t count() const noexcept { return count_; }
  CompressorState* inner() const noexcept { return inner_.get(); }

  /// Elements from `offset` on of array `index`.
  const float* current(std::size_t index, std::size_t offset) const noexcept {
    return current_[index].data() + offset;
  }
  float* next(std::size_t index, std::size_t offset) noexcept {
    return next_[index].data() + offset;
  }
  /// All arrays hold next values for `count` elements from `offset` on. Allocates only if a step is
  /// cut into more than about a thousand parts that do not touch. Any thread.
  void mark_written(std::size_t offset, std::size_t count);

  void commit() noexcept override;
  void rollback() noexcept override;

  /// uint64 arrays, uint64 count, the arrays, then what the inner state saves.
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> bytes) override;

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  std::size_t count_;
  std::vector<std::vector<float>> current_;
  std::vector<std::vector<float>> next_;
  std::unique_ptr<CompressorState> inner_;
  std::mutex mutex_;
  std::vector<Range> written_;  // sorted, neither overlapping nor touching
};

}  // namespace tersum::compressors
