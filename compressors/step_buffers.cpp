#include "compressors/step_buffers.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace tersum::compressors {
namespace {

constexpr std::size_t kReservedRanges = 1024;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(
      Code::InvalidArgument,
      "compressor state: " + what + "; it was saved for another gradient or another compressor");
}

}  // namespace

StepBuffers::StepBuffers(std::size_t arrays, std::size_t count,
                         std::unique_ptr<CompressorState> inner)
    : count_(count),
      current_(arrays, std::vector<float>(count, 0.0f)),
      next_(arrays, std::vector<float>(count, 0.0f)),
      inner_(std::move(inner)) {
  written_.reserve(std::min(count, kReservedRanges));
}

void StepBuffers::mark_written(std::size_t offset, std::size_t count) {
  if (count == 0) return;
  Range range{offset, offset + count};
  const std::lock_guard lock(mutex_);
  // Ranges that touch the new one are taken into it.
  const auto first =
      std::lower_bound(written_.begin(), written_.end(), range.begin,
                       [](const Range& r, std::size_t begin) { return r.end < begin; });
  auto last = first;
  while (last != written_.end() && last->begin <= range.end) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
    ++last;
  }
  if (first == last) {
    written_.insert(first, range);
  } else {
    *first = range;
    written_.erase(first + 1, last);
  }
}

void StepBuffers::commit() noexcept {
  if (written_.size() == 1 && written_[0].begin == 0 && written_[0].end == count_) {
    current_.swap(next_);
  } else {
    for (const Range& range : written_) {
      for (std::size_t a = 0; a < current_.size(); ++a) {
        std::copy(next_[a].data() + range.begin, next_[a].data() + range.end,
                  current_[a].data() + range.begin);
      }
    }
  }
  written_.clear();
  if (inner_) inner_->commit();
}

void StepBuffers::rollback() noexcept {
  written_.clear();
  if (inner_) inner_->rollback();
}

std::vector<std::byte> StepBuffers::save() const {
  const std::uint64_t head[2] = {current_.size(), count_};
  std::vector<std::byte> bytes(sizeof head + current_.size() * count_ * sizeof(float));
  std::memcpy(bytes.data(), head, sizeof head);
  std::byte* out = bytes.data() + sizeof head;
  for (const auto& array : current_) {
    if (count_ > 0) std::memcpy(out, array.data(), count_ * sizeof(float));
    out += count_ * sizeof(float);
  }
  if (inner_) {
    const auto more = inner_->save();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

void StepBuffers::load(std::span<const std::byte> bytes) {
  std::uint64_t head[2];
  const std::size_t own = sizeof head + current_.size() * count_ * sizeof(float);
  if (bytes.size() < own) {
    refuse(std::to_string(bytes.size()) + " bytes, expected " + std::to_string(own));
  }
  std::memcpy(head, bytes.data(), sizeof head);
  if (head[0] != current_.size() || head[1] != count_) {
    refuse(std::to_string(head[0]) + " arrays of " + std::to_string(head[1]) +
           " elements, expected " + std::to_string(current_.size()) + " of " +
           std::to_string(count_));
  }
  if (!inner_ && bytes.size() != own) {
    refuse(std::to_string(bytes.size()) + " bytes, expected " + std::to_string(own));
  }
  auto loaded = current_;
  const std::byte* in = bytes.data() + sizeof head;
  for (auto& array : loaded) {
    if (count_ > 0) std::memcpy(array.data(), in, count_ * sizeof(float));
    in += count_ * sizeof(float);
    if (!std::all_of(array.begin(), array.end(), [](float x) { return std::isfinite(x); })) {
      refuse("an infinity or a NaN among the values");
    }
  }
  if (inner_) inner_->load(bytes.subspan(own));
  current_ = std::move(loaded);
  written_.clear();
}

}  // namespace tersum::compressors
