// What tests of the gradient exchange share: small models, their gradients, training loops, and a
// serial reference that knows the Compressor interface only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "compressors/hash.hpp"
#include "src/numbers.hpp"
#include "src/support.hpp"

namespace tersum::test {

using Bytes = std::vector<std::byte>;
using Model = std::vector<Gradient>;
using Tensors = std::vector<Bytes>;  ///< one for each gradient of a model

inline Gradient gradient(std::string key, std::size_t count, DType dtype = DType::Float32,
                         int position = 0) {
  Gradient g;
  g.key = std::move(key);
  g.count = count;
  g.dtype = dtype;
  g.position = position;
  return g;
}

/// Gradients of many sizes, none and one element among them, in forward order.
inline Model odd_model(DType dtype = DType::Float32) {
  const std::size_t counts[] = {3000, 1, 777, 0, 6007, 512, 2048, 33};
  Model model;
  for (std::size_t i = 0; i < std::size(counts); ++i)
    model.push_back(
        gradient("layer" + std::to_string(i) + ".weight", counts[i], dtype, static_cast<int>(i)));
  return model;
}

/// What rank `rank` computes in step `step`: numbers of many magnitudes (small whole ones for
/// integers).
inline Tensors gradients_of(const Model& model, int rank, std::uint64_t step) {
  Tensors tensors;
  for (std::size_t g = 0; g < model.size(); ++g) {
    std::uint64_t state = step * 1000 + g * 10 + static_cast<std::uint64_t>(rank) + 1;
    Bytes tensor(model[g].count * element_bytes(model[g].dtype));
    for (std::size_t i = 0; i < model[g].count; ++i) {
      state = (state + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
      const double unit = static_cast<double>(state >> 11) / 4503599627370496.0 - 1;  // -1 to 1
      const double value = 3 * unit * unit * unit + 0.1;
      put(model[g].dtype, tensor.data(), i, value,
          static_cast<int>(value * 10) + (model[g].dtype == DType::UInt8 ? 50 : 0));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// Those of all ranks.
inline std::vector<Tensors> gradients_of_all(const Model& model, int ranks, std::uint64_t step) {
  std::vector<Tensors> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(gradients_of(model, rank, step));
  return all;
}

/// Gradient `g` of each of them.
inline std::vector<Bytes> each_of(const std::vector<Tensors>& all, std::size_t g) {
  std::vector<Bytes> tensors;
  for (const Tensors& one : all) tensors.push_back(one[g]);
  return tensors;
}

inline std::vector<float> as_floats(DType dtype, const Bytes& tensor) {
  std::vector<float> values(tensor.size() / element_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(float_at(dtype, tensor.data(), i));
  return values;
}

/// Backward order: the last gradient first.
inline std::vector<std::size_t> backward_order(const Model& model) {
  std::vector<std::size_t> order(model.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

/// Submits all, waits, and commits; `tensors` become the results.
inline void run_step(GradientExchange& exchange, const std::vector<std::size_t>& order,
                     Tensors& tensors) {
  for (std::size_t g : order) exchange.submit(g, tensors[g].data());
  exchange.wait_all();
  exchange.commit();
}

/// results[rank][step] of a training of `steps` steps, the exchange's life included.
inline std::vector<std::vector<Tensors>> train(World& world, const Model& model,
                                               const ExchangeOptions& options, std::uint64_t steps,
                                               bool shuffled = false) {
  std::vector<std::vector<Tensors>> results(world.size());
  each_rank(static_cast<int>(world.size()), [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    GradientExchange exchange(world[r], model, options);
    auto order = backward_order(model);
    std::mt19937 random(static_cast<unsigned>(rank) + 7);
    for (std::uint64_t step = 0; step < steps; ++step) {
      Tensors tensors = gradients_of(model, rank, step);
      if (shuffled) std::shuffle(order.begin(), order.end(), random);
      run_step(exchange, order, tensors);
      results[r].push_back(std::move(tensors));
    }
  });
  return results;
}

/// One gradient of all ranks, exchanged in one thread as the documentation says.
class SerialExchange {
 public:
  SerialExchange(const std::string& spec, const Gradient& gradient, int ranks,
                 std::uint64_t seed = 0, ReduceOp op = ReduceOp::Average)
      : compressor_(make_compressor(spec)),
        reducer_(compressor_->reducer() ? compressor_->reducer() : compressor_),
        gradient_(gradient),
        op_(op),
        seed_(seed) {
    for (int r = 0; r < ranks; ++r) states_.push_back(compressor_->make_state(gradient.count));
    if (compressor_->traits().aggregation == Aggregation::Recompress)
      reducer_state_ = reducer_->make_state(gradient.count);
  }

  /// The common result of one committed step; inputs[r] is rank r's gradient.
  Bytes step(const std::vector<Bytes>& inputs) {
    std::vector<Bytes> payloads;
    for (std::size_t r = 0; r < inputs.size(); ++r)
      payloads.push_back(encode(*compressor_, as_floats(gradient_.dtype, inputs[r]),
                                context(static_cast<std::uint32_t>(r)), states_[r].get()));
    const std::vector<float> result = combine(payloads);
    for (auto& state : states_)
      if (state) state->commit();
    if (reducer_state_) reducer_state_->commit();
    ++step_;
    Bytes bytes(inputs[0].size());
    for (std::size_t i = 0; i < result.size(); ++i)
      put(gradient_.dtype, bytes.data(), i, result[i], 0);
    return bytes;
  }

 private:
  SliceContext context(std::uint32_t rank) const {
    return {seed_, step_, compressors::key_hash(gradient_.key), 0, rank};
  }
  static Bytes encode(const Compressor& compressor, std::span<const float> values,
                      const SliceContext& context, CompressorState* state) {
    // 8-byte aligned, as operator new gives it.
    Bytes payload(compressor.max_payload_bytes(values.size()));
    payload.resize(compressor.compress(values, context, state, payload));
    return payload;
  }
  void divide(std::vector<float>& values, std::size_t ranks) const {
    if (op_ == ReduceOp::Average)
      for (float& v : values) v /= static_cast<float>(ranks);
  }

  std::vector<float> combine(const std::vector<Bytes>& payloads) {
    std::vector<float> values(gradient_.count);
    if (compressor_->traits().aggregation == Aggregation::Linear) {
      const DType dtype = compressor_->traits().payload_dtype;
      std::vector<Bytes> bodies;
      for (const Bytes& payload : payloads)
        bodies.emplace_back(payload.begin() + sizeof(PayloadHeader), payload.end());
      const std::size_t count = bodies[0].size() / element_bytes(dtype);
      const Bytes sum = reduced(dtype, op_, bodies, count);
      Bytes payload = payloads[0];
      std::copy(sum.begin(), sum.end(), payload.begin() + sizeof(PayloadHeader));
      compressor_->decompress(payload, context(0), values);
      return values;
    }
    for (std::size_t r = 0; r < payloads.size(); ++r)
      compressor_->decompress_add(payloads[r], context(static_cast<std::uint32_t>(r)), 1.0f,
                                  values);
    divide(values, payloads.size());
    if (compressor_->traits().aggregation == Aggregation::Recompress) {
      const Bytes again = encode(*reducer_, values, context(kReducerRank), reducer_state_.get());
      reducer_->decompress(again, context(kReducerRank), values);
    }
    return values;
  }

  std::shared_ptr<const Compressor> compressor_, reducer_;
  Gradient gradient_;
  ReduceOp op_;
  std::uint64_t seed_, step_ = 0;
  std::vector<std::unique_ptr<CompressorState>> states_;
  std::unique_ptr<CompressorState> reducer_state_;
};

/// Every registered method with its defaults, alone and with the decorators that it takes.
inline std::vector<std::string> registered_specs() {
  std::vector<std::string> specs;
  for (const CompressorEntry& entry : compressor_entries())
    for (const char* decorators : {"", "+ef", "+ef+momentum=0.9"}) {
      const std::string spec = entry.name + decorators;
      if (thrown_by([&] { make_compressor(spec); }).is_ok()) specs.push_back(spec);
    }
  return specs;
}

inline std::string spec_name(std::string spec) {
  std::replace_if(
      spec.begin(), spec.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return spec;
}

/// Options under which everything is compressed, in many slices.
inline ExchangeOptions compressing(const std::string& spec) {
  ExchangeOptions options;
  options.compressor = spec;
  options.compress_min_bytes = 0;
  options.slice_bytes = 8192;
  options.bucket_bytes = 65536;
  options.seed = 42;
  return options;
}

}  // namespace tersum::test
