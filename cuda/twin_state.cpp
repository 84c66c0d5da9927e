#include "cuda/twin_state.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cuda/error.hpp"
#include "cuda/twin_mask.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr std::size_t kHintBytes = 256;
static_assert(TwinState::kHintWords * sizeof(std::uint32_t) <= kHintBytes);
constexpr std::size_t kReservedRanges = 64;
constexpr std::size_t kHeadBytes = 2 * sizeof(std::uint64_t);  // of saved values: arrays, count

constexpr std::size_t stride_of(std::size_t count) {
  return (count * sizeof(float) + 255) / 256 * 256;
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Code::InvalidArgument, "compressor state: " + what +
                                         "; it was saved for another gradient or another "
                                         "compressor");
}

}  // namespace

TwinState::TwinState(std::size_t arrays, std::size_t count, StreamView stream, bool masked,
                     Steps steps)
    : arrays_(arrays),
      count_(count),
      stride_(stride_of(count)),
      mask_words_(masked ? mask_words_for(count) : 0),
      steps_(steps),
      memory_(kHintBytes + (steps == Steps::Final ? 1 : 2) *
                               (arrays * stride_of(count) + mask_words_ * sizeof(std::uint32_t))) {
  written_.reserve(kReservedRanges);
  check(cudaMemsetAsync(memory_.data(), 0, memory_.bytes(), stream.get()), "cudaMemsetAsync");
}

std::uint32_t* TwinState::mask(bool next) const noexcept {
  if (mask_words_ == 0) return nullptr;
  const std::size_t halves = steps_ == Steps::Final ? 1 : 2;
  auto* masks =
      reinterpret_cast<std::uint32_t*>(memory_.data() + kHintBytes + halves * arrays_ * stride_);
  return masks + (is_second(next) ? mask_words_ : 0);
}

std::byte* TwinState::array(std::size_t index, bool next) const noexcept {
  const std::size_t half = is_second(next) ? arrays_ : 0;
  return memory_.data() + kHintBytes + (half + index) * stride_;
}

const float* TwinState::current(std::size_t index, std::size_t offset) const noexcept {
  return reinterpret_cast<const float*>(array(index, false)) + offset;
}

float* TwinState::next(std::size_t index, std::size_t offset) const noexcept {
  return reinterpret_cast<float*>(array(index, true)) + offset;
}

std::uint32_t* TwinState::hint() const noexcept {
  return memory_.as<std::uint32_t>();
}

void TwinState::mark_written(std::size_t offset, std::size_t count) {
  if (count == 0 || steps_ == Steps::Final) return;
  Range range{offset, offset + count};
  const auto first =
      std::lower_bound(written_.begin(), written_.end(), range.begin,
                       [](const Range& r, std::size_t begin) { return r.end < begin; });
  auto last = first;
  for (; last != written_.end() && last->begin <= range.end; ++last) {
    range.begin = std::min(range.begin, last->begin);
    range.end = std::max(range.end, last->end);
  }
  if (first == last) {
    written_.insert(first, range);
  } else {
    *first = range;
    written_.erase(first + 1, last);
  }
}

void TwinState::commit(StreamView stream) {
  if (steps_ == Steps::Final) return;
  if (written_.size() == 1 && written_[0].begin == 0 && written_[0].end == count_) {
    swapped_ = !swapped_;
  } else {
    for (const Range& range : written_) {
      const std::size_t first = range.begin * sizeof(float);
      const std::size_t bytes = range.end * sizeof(float) - first;
      for (std::size_t a = 0; a < arrays_; ++a) {
        check(cudaMemcpyAsync(array(a, false) + first, array(a, true) + first, bytes,
                              cudaMemcpyDeviceToDevice, stream.get()),
              "cudaMemcpyAsync");
      }
    }
  }
  written_.clear();
}

void TwinState::rollback() noexcept {
  written_.clear();
}

std::vector<std::byte> TwinState::save(StreamView stream) const {
  if (arrays_ == 0) return {};
  const std::uint64_t head[2] = {arrays_, count_};
  std::vector<std::byte> bytes(saved_bytes());
  std::memcpy(bytes.data(), head, kHeadBytes);
  for (std::size_t a = 0; a < arrays_ && count_ > 0; ++a) {
    if (masked()) {
      apply_mask(stream, mask(false), reinterpret_cast<float*>(array(a, false)), count_);
    }
    check(cudaMemcpyAsync(bytes.data() + kHeadBytes + a * count_ * sizeof(float), array(a, false),
                          count_ * sizeof(float), cudaMemcpyDeviceToHost, stream.get()),
          "cudaMemcpyAsync");
  }
  stream.synchronize();
  return bytes;
}

std::size_t TwinState::saved_bytes() const noexcept {
  return arrays_ == 0 ? 0 : kHeadBytes + arrays_ * count_ * sizeof(float);
}

void TwinState::validate(std::span<const std::byte> bytes) const {
  if (bytes.size() != saved_bytes()) {
    refuse(std::to_string(bytes.size()) + " bytes, expected " + std::to_string(saved_bytes()));
  }
  if (arrays_ == 0) return;
  std::uint64_t head[2] = {0, 0};
  std::memcpy(head, bytes.data(), kHeadBytes);
  if (head[0] != arrays_ || head[1] != count_) {
    refuse(std::to_string(head[0]) + " arrays of " + std::to_string(head[1]) +
           " elements, expected " + std::to_string(arrays_) + " of " + std::to_string(count_));
  }
  for (std::size_t at = kHeadBytes; at < bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(float));
    if (!std::isfinite(value)) refuse("an infinity or a NaN among the values");
  }
}

void TwinState::load(std::span<const std::byte> bytes, StreamView stream) {
  validate(bytes);
  for (std::size_t a = 0; a < arrays_ && count_ > 0; ++a) {
    const std::size_t array_bytes = count_ * sizeof(float);
    check(cudaMemcpyAsync(array(a, false), bytes.data() + kHeadBytes + a * array_bytes, array_bytes,
                          cudaMemcpyHostToDevice, stream.get()),
          "cudaMemcpyAsync");
  }
  if (masked()) {
    check(cudaMemsetAsync(mask(false), 0, mask_words_ * sizeof(std::uint32_t), stream.get()),
          "cudaMemsetAsync");
  }
  stream.synchronize();
  written_.clear();
}

}  // namespace tersum::gpu
