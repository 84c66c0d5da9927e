// The twins of this room, and the parameters that make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "compressors/keep_rule.hpp"
#include "cuda/twin.hpp"

namespace tersum::gpu {

/// A canonical spec taken apart: only what its method has is set.
struct TwinParameters {
  std::string spec;
  std::uint16_t wire_id = 0;
  std::uint8_t wire_version = 1;
  compressors::KeepRule keep;  // topk, randomk
  bool unbiased = false;       // randomk
  int bits = 0;                // qint
  std::size_t block = 0;       // qint, sign
  bool stochastic = false;     // qint
  std::size_t arrays = 0;      // 1: +ef, 2: +momentum
  float momentum = 0;
};

/// Reads the canonical spec of a built-in compressor; nothing if it is none of those with a twin.
std::optional<TwinParameters> read_parameters(const Compressor& compressor);

std::unique_ptr<Twin> make_cast_twin(const TwinParameters& parameters, DType dtype);
std::unique_ptr<Twin> make_qint_twin(const TwinParameters& parameters);
std::unique_ptr<Twin> make_sign_twin(const TwinParameters& parameters);
std::unique_ptr<Twin> make_topk_twin(const TwinParameters& parameters);
std::unique_ptr<Twin> make_randomk_twin(const TwinParameters& parameters);

}  // namespace tersum::gpu
