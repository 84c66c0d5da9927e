#include <charconv>
#include <map>
#include <string_view>

#include "compressors/wire_ids.hpp"
#include "cuda/twin_methods.hpp"

namespace tersum::gpu {
namespace {

// What stands before `end` in `text`; takes it and `end` off.
std::string_view take(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view word = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return word;
}

template <typename T>
bool read(std::string_view text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool read_parameter(std::string_view key, std::string_view value, TwinParameters& parameters) {
  if (key == "ratio") return read(value, parameters.keep.ratio);
  if (key == "k") return read(value, parameters.keep.k);
  if (key == "bits") return read(value, parameters.bits);
  if (key == "block") return read(value, parameters.block);
  if (key == "scale") return parameters.unbiased = value == "unbiased", true;
  if (key == "rounding") return parameters.stochastic = value == "stochastic", true;
  return false;
}

bool read_decorator(std::string_view name, std::string_view value, TwinParameters& parameters) {
  if (name == "ef") {
    parameters.arrays = 1;
    return true;
  }
  double momentum = 0;
  if (name != "momentum" || !read(value, momentum)) return false;
  parameters.arrays = 2;
  parameters.momentum = static_cast<float>(momentum);
  return true;
}

}  // namespace

std::optional<TwinParameters> read_parameters(const Compressor& compressor) {
  TwinParameters parameters;
  parameters.spec = compressor.spec();
  parameters.wire_id = compressor.traits().wire_id;
  parameters.wire_version = compressor.traits().wire_version;
  if (parameters.wire_id >= compressors::wire_id::kFirstOutOfTree) return std::nullopt;
  std::string_view decorators = parameters.spec;
  std::string_view values = take(decorators, '+');
  take(values, ':');  // the method's name
  while (!values.empty()) {
    std::string_view value = take(values, ',');
    const std::string_view key = take(value, '=');
    if (!read_parameter(key, value, parameters)) return std::nullopt;
  }
  while (!decorators.empty()) {
    std::string_view value = take(decorators, '+');
    const std::string_view name = take(value, '=');
    if (!read_decorator(name, value, parameters)) return std::nullopt;
  }
  return parameters;
}

std::unique_ptr<Twin> Twin::make(const Compressor& compressor) {
  namespace wire_id = compressors::wire_id;
  const auto parameters = read_parameters(compressor);
  if (!parameters || parameters->wire_version != 1) return nullptr;
  switch (parameters->wire_id) {
    case wire_id::kNone:
      return make_cast_twin(*parameters, DType::Float32);
    case wire_id::kFloat16:
      return make_cast_twin(*parameters, DType::Float16);
    case wire_id::kBFloat16:
      return make_cast_twin(*parameters, DType::BFloat16);
    case wire_id::kTopK:
      return make_topk_twin(*parameters);
    case wire_id::kRandomK:
      return make_randomk_twin(*parameters);
    case wire_id::kQInt:
      return make_qint_twin(*parameters);
    case wire_id::kSign:
      return make_sign_twin(*parameters);
    default:
      return nullptr;
  }
}

}  // namespace tersum::gpu
