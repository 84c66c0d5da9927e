#include "perf/compressed.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "perf/buffers.hpp"
#include "perf/device.hpp"
#include "perf/elements.hpp"
#include "perf/values.hpp"
#include "tersum/compressor.hpp"
#include "tersum/gradient_exchange.hpp"

namespace tersum::perf {
namespace {

constexpr double kBoundSlack = 1.001;  // rounding of sums in fp32

void fill_gradient(void* data, DType dtype, int rank, std::size_t count) {
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    auto* bytes = static_cast<std::byte*>(data);
    for (std::size_t i = 0; i < count; ++i) {
      const auto raw = Element::from_double(gradient_value(rank, i));
      std::memcpy(bytes + i * sizeof(raw), &raw, sizeof(raw));
    }
  });
}

struct Comparison {
  double error_squared = 0, exact_squared = 0, max_abs_error = 0;
  double bound = 0;  // sum over ranks of the norms of their gradients
  std::int64_t not_finite = 0;
  std::uint64_t hash = 0;
};

/// The result against sums in double precision of what the ranks have put in.
Comparison compare(const void* data, DType dtype, ReduceOp op, int ranks, std::size_t count) {
  Comparison found;
  const double scale = op == ReduceOp::Average ? 1.0 / ranks : 1.0;
  std::vector<double> norms(static_cast<std::size_t>(ranks));
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      double exact = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const double x = Element::decode(Element::from_double(gradient_value(rank, i)));
        exact += x * scale;
        norms[static_cast<std::size_t>(rank)] += x * x;
      }
      typename Element::Raw raw;
      std::memcpy(&raw, static_cast<const std::byte*>(data) + i * sizeof(raw), sizeof(raw));
      const double result = Element::decode(raw), error = result - exact;
      found.not_finite += std::isfinite(result) ? 0 : 1;
      found.error_squared += error * error;
      found.exact_squared += exact * exact;
      found.max_abs_error = std::max(found.max_abs_error, std::fabs(error));
      std::uint64_t bits = 0;
      std::memcpy(&bits, &raw, sizeof(raw));
      found.hash = mix_bits(found.hash ^ bits);
    }
  });
  for (const double norm : norms) found.bound += scale * std::sqrt(norm);
  return found;
}

bool same_on_all_ranks(Communicator& communicator, std::uint64_t hash) {
  // The least of x and of ~x: the two are complements of each other only if all are equal.
  std::array<std::int64_t, 2> least = {static_cast<std::int64_t>(hash),
                                       static_cast<std::int64_t>(~hash)};
  communicator.all_reduce(least.data(), least.data(), 2, DType::Int64, ReduceOp::Min).wait();
  return least[0] == ~least[1];
}

void check_first_step(Communicator& communicator, const Options& options, std::size_t elements,
                      const Compressor& compressor, GuardedBuffer& gradient,
                      CompressedResult& result) {
  const Comparison found =
      compare(gradient.data(), options.dtype, options.op, communicator.size(), elements);
  const bool same = same_on_all_ranks(communicator, found.hash);
  const double error = std::sqrt(found.error_squared);
  result.relative_l2_error = found.exact_squared > 0 ? error / std::sqrt(found.exact_squared) : 0;
  result.max_abs_error = found.max_abs_error;
  std::int64_t wrong = found.not_finite + static_cast<std::int64_t>(gradient.broken_guards());
  if (!same) wrong += static_cast<std::int64_t>(elements);
  const CompressorTraits& traits = compressor.traits();
  if (traits.bias == Bias::Contractive && traits.aggregation == Aggregation::SparseMerge &&
      !(error <= kBoundSlack * found.bound)) {
    wrong += static_cast<std::int64_t>(elements);
  }
  communicator.all_reduce(&wrong, &wrong, 1, DType::Int64).wait();
  result.wrong = wrong;
}

}  // namespace

double gradient_value(int rank, std::size_t index) noexcept {
  const std::uint64_t hash =
      mix_bits(mix_bits(static_cast<std::uint64_t>(rank) + 1) + index * 0x9e3779b97f4a7c15u);
  double sum = 0;  // of four uniform numbers
  for (int part = 0; part < 4; ++part) {
    sum += static_cast<double>(hash >> (16 * part) & 0xffff) / 65536.0;
  }
  return (sum - 2.0) * std::sqrt(3.0);
}

CompressedResult measure_compressed(Communicator& communicator, const Options& options,
                                    std::size_t elements) {
  const std::size_t bytes = elements * element_bytes(options.dtype);
  ExchangeOptions settings;
  settings.compress_min_bytes = 0;
  settings.op = options.op;
  const auto compressor = make_compressor(options.compressor);
  BufferRing originals(bytes), gradients(bytes);
  std::unique_ptr<DeviceMemory> device;
  if (options.device) device = DeviceMemory::make(communicator.rank(), originals, gradients);
  Gradient described;
  described.key = "gradient";
  described.count = elements;
  described.dtype = options.dtype;
  described.compressor = options.compressor;
  if (device) described.memory = MemoryType::Cuda;
  GradientExchange exchange(communicator, {described}, settings);
  const auto place = [&](void* host) { return device ? device->image(host) : host; };
  const auto exchange_once = [&](void* host) {
    exchange.submit(std::size_t{0}, place(host), device ? device->stream() : Stream{}).wait();
  };
  fill_gradient(originals.slot(0), options.dtype, communicator.rank(), elements);
  CompressedResult result;

  GuardedBuffer gradient(gradients, bytes, 0);
  std::memcpy(gradient.data(), originals.slot(0), bytes);
  if (device) device->upload();
  exchange_once(gradient.data());
  if (device) device->download();
  if (options.check) {
    check_first_step(communicator, options, elements, *compressor, gradient, result);
  }
  exchange.commit();

  const auto slot = [&](int turn) { return gradients.slot(static_cast<std::size_t>(turn)); };
  const auto step = [&](int turn) {
    exchange_once(slot(turn));
    exchange.commit();
  };
  // Each call starts from the same gradient, as if a backward pass had just written it.
  const auto restore = [&](int turn) {
    if (device)
      device->copy(place(slot(turn)), place(originals.slot(0)), bytes);
    else
      std::memcpy(slot(turn), originals.slot(0), bytes);
  };
  const ExchangeStatistics before = exchange.statistics();
  result.timing = time_calls(communicator, options.warmup, options.iterations, step, restore);
  const ExchangeStatistics after = exchange.statistics();

  double sent = static_cast<double>(after.sent_bytes - before.sent_bytes);
  communicator.all_reduce(&sent, &sent, 1, DType::Float64, ReduceOp::Average).wait();
  result.wire_bytes = sent / static_cast<double>(after.steps - before.steps);
  result.ratio = sent > 0 ? static_cast<double>(after.dense_bytes - before.dense_bytes) / sent : 0;
  return result;
}

}  // namespace tersum::perf
