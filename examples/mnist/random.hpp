// Random numbers that are the same on every platform: the standard fixes the engine but not the
// distributions, so the mappings are here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace mnist {

/// A bijection in which every input bit reaches every output bit (the finaliser of SplitMix64).
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A sequence of its own for each (seed, stream).
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : engine_(mix(mix(seed) + stream)) {}

  /// Uniform in [-1, 1), in steps of 2^-23.
  float symmetric() {
    constexpr float kStep = 1.0f / 8388608.0f;
    return static_cast<float>(static_cast<std::int32_t>(engine_() >> 40) - 8388608) * kStep;
  }

  /// Uniform in [0, bound), for 0 < bound <= 2^32.
  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>(((engine_() >> 32) * std::uint64_t{bound}) >> 32);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace mnist
