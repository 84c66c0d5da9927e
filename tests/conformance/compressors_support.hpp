// What tests of compressors share: encoding and decoding in one call, input vectors, and the list
// of all specs to test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tersum/compressor.hpp"

namespace tersum::test {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

/// The payload of `input`, cut to the bytes written.
inline Bytes encode(const Compressor& compressor, std::span<const float> input,
                    const SliceContext& context = {}, CompressorState* state = nullptr) {
  std::unique_ptr<CompressorState> own;
  if (state == nullptr) {
    own = compressor.make_state(context.offset + input.size());
    state = own.get();
  }
  Bytes payload(compressor.max_payload_bytes(input.size()));
  payload.resize(compressor.compress(input, context, state, payload));
  return payload;
}

inline Floats decode(const Compressor& compressor, std::span<const std::byte> payload,
                     std::size_t count, const SliceContext& context = {}) {
  Floats output(count, -77.0f);
  compressor.decompress(payload, context, output);
  return output;
}

/// decode(encode(input)).
inline Floats round_trip(const Compressor& compressor, std::span<const float> input,
                         const SliceContext& context = {}) {
  return decode(compressor, encode(compressor, input, context), input.size(), context);
}

inline Floats gaussian(std::size_t count, unsigned seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> draw(0.0f, deviation);
  Floats values(count);
  for (float& value : values) value = draw(generator);
  return values;
}

/// The bits of floats, for comparisons that must tell -0 from 0 and take NaN as equal to itself.
inline std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> result(values.size());
  if (!values.empty()) std::memcpy(result.data(), values.data(), values.size_bytes());
  return result;
}

inline double squared_norm(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return sum;
}

inline double squared_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return sum;
}

/// Payload bytes from a list of numbers.
inline Bytes bytes(std::initializer_list<unsigned> values) {
  Bytes result;
  for (const unsigned value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

/// Every registered method (the example of tests/out_of_tree among them) with its defaults, in the
/// variants below, and each of these with every decorator that it takes.
std::vector<std::string> all_specs();

/// A spec as the name of a parameterised test.
std::string test_name(const std::string& spec);

}  // namespace tersum::test
