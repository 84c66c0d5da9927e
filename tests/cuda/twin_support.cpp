#include "cuda/twin_support.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cuda/error.hpp"

namespace tersum::gpu::test {
namespace {

constexpr std::size_t kGuard = 64;  // bytes behind a payload that must stay as they are
constexpr std::byte kGuardByte{0xa5};

void copy(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
  stream.synchronize();
}

}  // namespace

Bench::Bench(const std::string& spec, std::size_t count, std::size_t misalign)
    : cpu_(make_compressor(spec)),
      twin_(Twin::make(*cpu_)),
      misalign_(misalign),
      floats_((count + misalign + 4) * sizeof(float)),
      payload_(cpu_->max_payload_bytes(count) + kGuard),
      status_(stream_) {
  if (twin_ == nullptr) return;
  workspace_ = DeviceBuffer(twin_->workspace_bytes(count));
  make_state(count);
}

void Bench::make_state(std::size_t count) {
  state_ = twin_->make_state(count, stream_);
}

Bytes Bench::compress(std::span<const float> input, const SliceContext& context) {
  float* device = floats_.as<float>() + misalign_;
  const std::size_t bytes = twin_->payload_bytes(input.size());
  EXPECT_EQ(bytes, cpu_->max_payload_bytes(input.size()));
  // In the stream: the device would do a plain cudaMemset() at a time of its own.
  check(cudaMemsetAsync(payload_.data(), static_cast<int>(kGuardByte), payload_.bytes(),
                        stream_.get()),
        "cudaMemsetAsync");
  copy(device, input.data(), input.size_bytes(), stream_);
  twin_->compress(stream_, device, input.size(), context, state_.get(), payload_.data(),
                  {workspace_.data(), workspace_.bytes()});
  stream_.synchronize();
  Bytes payload(bytes + kGuard);
  copy(payload.data(), payload_.data(), payload.size(), stream_);
  EXPECT_TRUE(std::all_of(payload.begin() + static_cast<std::ptrdiff_t>(bytes), payload.end(),
                          [](std::byte b) { return b == kGuardByte; }))
      << "bytes behind the payload were written";
  payload.resize(bytes);
  return payload;
}

template <class Call>
Floats Bench::decode(std::span<const std::byte> payload, const Floats& before, const Call& call) {
  float* device = floats_.as<float>() + misalign_;
  copy(device, before.data(), before.size() * sizeof(float), stream_);
  copy(payload_.data(), payload.data(), payload.size(), stream_);
  call(std::span<const std::byte>(payload_.data(), payload.size()), device,
       std::span<std::byte>(workspace_.data(), workspace_.bytes()));
  stream_.synchronize();
  Floats after(before.size());
  copy(after.data(), device, after.size() * sizeof(float), stream_);
  return after;
}

Floats Bench::decompress(std::span<const std::byte> payload, std::size_t count,
                         const SliceContext& context) {
  return decode(payload, Floats(count, -77.0f), [&](auto bytes, float* out, auto workspace) {
    twin_->decompress(stream_, bytes, context, out, count, workspace, status_);
  });
}

Floats Bench::decompress_add(std::span<const std::byte> payload, Floats accumulator, float scale,
                             const SliceContext& context) {
  return decode(payload, accumulator, [&](auto bytes, float* out, auto workspace) {
    twin_->decompress_add(stream_, bytes, context, scale, out, accumulator.size(), workspace,
                          status_);
  });
}

Floats Bench::clear_sent(std::span<const std::byte> payload, Floats values,
                         const SliceContext& context) {
  return decode(payload, values, [&](auto bytes, float* out, auto workspace) {
    twin_->clear_sent(stream_, bytes, context, out, values.size(), workspace, status_);
  });
}

Status Bench::status() {
  status_.fetch(stream_);
  status_.clear(stream_);
  stream_.synchronize();
  return status_.status();
}

const std::vector<std::string>& input_kinds() {
  static const std::vector<std::string> kinds = {"gaussian",  "zeros", "ties",     "nonfinite",
                                                 "denormals", "huge",  "constant", "nan"};
  return kinds;
}

Floats make_input(const std::string& kind, std::size_t count, unsigned seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::mt19937 generator(seed * 7919 + 17);
  if (kind == "zeros") {
    Floats x(count);
    for (std::size_t i = 0; i < count; ++i) x[i] = i % 3 == 0 ? -0.0f : 0.0f;
    return x;
  }
  if (kind == "constant") return Floats(count, 0.1f + static_cast<float>(seed));
  if (kind == "nan") return Floats(count, std::nanf("0x1234"));
  Floats x = tersum::test::gaussian(count, seed + 5);
  for (float& value : x) {
    const unsigned draw = static_cast<unsigned>(generator());
    if (kind == "ties") value = std::round(value * 2) / 2;
    if (kind == "denormals") value *= 1e-39f;
    if (kind == "huge") value *= 1e38f;
    if (kind != "nonfinite" || draw % 199 != 0) continue;
    const float odd[] = {kInfinity, -kInfinity, std::nanf("7"), -std::nanf("0x31")};
    value = odd[draw / 199 % 4];
  }
  return x;
}

std::vector<std::uint32_t> bits_of_sums(std::span<const float> values) {
  auto result = tersum::test::bits(values);
  for (std::uint32_t& word : result) {
    if ((word & 0x7fffffffu) > 0x7f800000u) word = 0x7fc00000u;
  }
  return result;
}

}  // namespace tersum::gpu::test
