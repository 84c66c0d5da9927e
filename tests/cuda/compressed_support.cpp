#include "cuda/compressed_support.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cuda/compressed_composed.hpp"
#include "cuda/compressed_plan.hpp"
#include "cuda/divide.hpp"
#include "cuda/error.hpp"
#include "cuda/twin_support.hpp"

namespace tersum::gpu::test {
namespace {

constexpr std::size_t kMargin = 16;  // elements around the output that must stay as they are
constexpr float kPoison = -7.25f;

void expect_saved(const std::vector<std::byte>& got, const std::vector<std::byte>& wanted,
                  const std::string& what) {
  if (got == wanted) return;
  const auto differs = std::mismatch(got.begin(), got.end(), wanted.begin(), wanted.end());
  throw std::runtime_error(what + ": the saved state differs at byte " +
                           std::to_string(differs.first - got.begin()) + " of " +
                           std::to_string(got.size()));
}

}  // namespace

void expect_same(const Floats& got, const Floats& wanted, const std::string& what) {
  const auto a = bits_of_sums(got), b = bits_of_sums(wanted);
  const auto differs = std::mismatch(a.begin(), a.end(), b.begin());
  if (differs.first == a.end()) return;
  const auto i = static_cast<std::size_t>(differs.first - a.begin());
  throw std::runtime_error(what + ": element " + std::to_string(i) + " of " +
                           std::to_string(got.size()) + " is " + std::to_string(got[i]) + ", not " +
                           std::to_string(wanted[i]));
}

HostExchange::HostExchange(const std::string& spec, std::size_t count, int ranks)
    : compressor_(make_compressor(spec)),
      reducer_(compressor_->reducer() ? compressor_->reducer() : compressor_),
      count_(count) {
  const bool recompresses = compressor_->traits().aggregation == Aggregation::Recompress;
  for (int r = 0; r < ranks; ++r) {
    parts_.push_back(
        {compressor_->make_state(count), recompresses ? reducer_->make_state(count) : nullptr});
  }
}

Floats HostExchange::decoded(const Compressor& compressor, std::span<const float> values,
                             const SliceContext& context, CompressorState* state) const {
  std::vector<std::byte> payload(compressor.max_payload_bytes(values.size()));
  payload.resize(compressor.compress(values, context, state, payload));
  Floats result(values.size());
  compressor.decompress(payload, context, result);
  return result;
}

Floats HostExchange::step(const std::vector<Floats>& inputs, ReduceOp op,
                          const SliceContext& context) {
  const bool recompresses = compressor_->traits().aggregation == Aggregation::Recompress;
  Floats result = recompresses ? recompress(inputs, op, context) : merge(inputs, op, context);
  for (Part& part : parts_) {
    if (part.state) part.state->commit();
    if (part.reducer_state) part.reducer_state->commit();
  }
  return result;
}

Floats HostExchange::recompress(const std::vector<Floats>& inputs, ReduceOp op,
                                const SliceContext& context) {
  const auto ranks = static_cast<int>(inputs.size());
  std::uint64_t begin[kMaxPeers + 1];
  share_out(count_, std::max<std::size_t>(1, compressor_->traits().block_count), ranks, begin);
  Floats result(count_);
  for (std::size_t owner = 0; owner < inputs.size(); ++owner) {
    const std::size_t first = begin[owner], count = begin[owner + 1] - first;
    if (count == 0) continue;
    SliceContext part = context;
    part.offset += first;
    Floats sum(count);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      part.rank = static_cast<std::uint32_t>(r);
      const Floats values = decoded(*compressor_, std::span(inputs[r]).subspan(first, count), part,
                                    parts_[r].state.get());
      for (std::size_t i = 0; i < count; ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
    }
    if (op == ReduceOp::Average) {
      for (float& x : sum) x /= static_cast<float>(ranks);
    }
    part.rank = kReducerRank;
    const Floats values = decoded(*reducer_, sum, part, parts_[owner].reducer_state.get());
    std::copy(values.begin(), values.end(), result.begin() + static_cast<std::ptrdiff_t>(first));
  }
  return result;
}

// Casts round the sum once more, without feedback.
Floats HostExchange::merge(const std::vector<Floats>& inputs, ReduceOp op,
                           const SliceContext& context) {
  Floats sum(count_);
  const bool linear = compressor_->traits().aggregation == Aggregation::Linear;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    SliceContext part = context;
    part.rank = static_cast<std::uint32_t>(r);
    const Floats values = decoded(*compressor_, inputs[r], part, parts_[r].state.get());
    for (std::size_t i = 0; i < count_; ++i) {
      sum[i] = r == 0 && linear ? values[i] : sum[i] + values[i];
    }
  }
  if (op == ReduceOp::Average) {
    for (float& x : sum) x /= static_cast<float>(inputs.size());
  }
  if (compressor_->traits().payload_dtype == DType::Float32) return sum;
  const auto plain = make_compressor(compressor_->traits().name);
  return decoded(*plain, sum, context, nullptr);
}

std::vector<std::byte> HostExchange::saved(int rank) const {
  const auto& state = parts_[static_cast<std::size_t>(rank)].state;
  return state ? state->save() : std::vector<std::byte>();
}

std::vector<std::byte> HostExchange::saved_reducer(int rank) const {
  const auto& state = parts_[static_cast<std::size_t>(rank)].reducer_state;
  return state ? state->save() : std::vector<std::byte>();
}

std::string CompressedCase::to_string() const {
  return spec + " of " + std::to_string(count) + " " + input + " " +
         std::string(tersum::to_string(op)) + (in_place ? " in place" : "") + " shifted by " +
         std::to_string(shift);
}

std::vector<Floats> make_inputs(const CompressedCase& test, int ranks, int step) {
  std::vector<Floats> inputs;
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(make_input(test.input, test.count, static_cast<unsigned>(100 * step + r + 1)));
  }
  return inputs;
}

CompressedRank::CompressedRank(const RankRole& role, int devices, const PeerSettings& settings,
                               const CompressedSettings& compressed)
    : role_(role),
      guard_(std::make_unique<DeviceGuard>(role.rank % devices)),
      stream_(std::make_unique<Stream>()),
      peers_(std::make_unique<PeerCommunicator>(role.rank, role.size, role.all_gather, settings)),
      compressed_(std::make_unique<CompressedCommunicator>(*peers_, role.all_gather, compressed)),
      input_(kCapacity),
      output_(kCapacity),
      workspace_(3 * kCapacity),
      decoded_(std::make_unique<DecodeStatus>(*stream_)),
      host_(kCapacity) {}

void CompressedRank::meet() const {
  const std::byte nothing{};
  role_.all_gather(std::span(&nothing, 1));
}

void CompressedRank::write(float* to, const Floats& values) const {
  stream_->synchronize();
  std::memcpy(host_.data(), values.data(), values.size() * sizeof(float));
  gpu::check(cudaMemcpyAsync(to, host_.data(), values.size() * sizeof(float),
                             cudaMemcpyHostToDevice, stream_->get()),
             "write");
  stream_->synchronize();
}

Floats CompressedRank::read(const float* from, std::size_t count) const {
  gpu::check(cudaMemcpyAsync(host_.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost,
                             stream_->get()),
             "read");
  stream_->synchronize();
  Floats values(count);
  std::memcpy(values.data(), host_.data(), count * sizeof(float));
  return values;
}

void CompressedRank::warm_up(const CompressedMethod& method, std::size_t count) const {
  if (method.form() == CompressedMethod::Form::Fused || count == 0) return;
  for (const Twin* twin : {&method.twin(), &method.reducer()}) {
    const auto state = twin->make_state(count, *stream_);
    const std::size_t bytes = (twin->payload_bytes(count) + 255) / 256 * 256;
    const auto payload = workspace().first(twin->payload_bytes(count));
    const auto rest = workspace().subspan(bytes);
    twin->compress(*stream_, output(), count, {}, state.get(), payload.data(), rest);
    twin->decompress(*stream_, payload, {}, output(), count, rest, *decoded_);
    twin->decompress_add(*stream_, payload, {}, 1.0f, output(), count, rest, *decoded_);
    stream_->synchronize();
  }
  divide(*stream_, output(), count, 1.0f);
}

void CompressedRank::check(const CompressedCase& test) {
  HostExchange host(test.spec, test.count, size());
  const CompressedMethod method(host.compressor());
  const auto steps = TwinState::Steps::Provisional;
  const auto state = method.make_state(test.count, *stream_, steps);
  const auto reducer_state = method.make_reducer_state(test.count, *stream_, steps);
  warm_up(method, test.count);
  stream_->synchronize();
  meet();  // nobody allocates while another rank's kernels wait
  CompressedSlice slice;
  slice.input = input() + kMargin + test.shift;
  float* const output = (test.in_place ? input() : this->output()) + kMargin + test.shift;
  slice.output = output;
  slice.count = test.count;
  slice.state = state.get();
  slice.reducer_state = reducer_state.get();
  slice.workspace = workspace();
  slice.decoded = decoded_.get();
  for (int step = 0; step < test.steps; ++step) {
    const std::string what = test.to_string() + " on rank " + std::to_string(rank()) + " in step " +
                             std::to_string(step);
    slice.context = {7, static_cast<std::uint64_t>(step) + (std::uint64_t{1} << 33), 0x1234567890ab,
                     0, 0};
    const auto inputs = make_inputs(test, size(), step);
    const Floats wanted = host.step(inputs, test.op, slice.context);
    slice.context.rank = static_cast<std::uint32_t>(rank());
    write(output - kMargin, Floats(test.count + 2 * kMargin, kPoison));
    write(input() + kMargin + test.shift, inputs[static_cast<std::size_t>(rank())]);
    compressed_->all_reduce(method, slice, test.op, *stream_);
    for (TwinState* written : {state.get(), reducer_state.get()}) {
      if (written != nullptr) written->commit(*stream_);
    }
    const Floats got = read(output - kMargin, test.count + 2 * kMargin);
    if (const Status status = peers_->status(); !status.is_ok()) {
      throw std::runtime_error(what + ": " + status.to_string());
    }
    Floats framed(test.count + 2 * kMargin, kPoison);
    std::copy(wanted.begin(), wanted.end(), framed.begin() + kMargin);
    expect_same(got, framed, what);
    if (state) expect_saved(state->save(*stream_), host.saved(rank()), what);
    if (reducer_state) {
      expect_saved(reducer_state->save(*stream_), host.saved_reducer(rank()), what + ", reducer");
    }
  }
  meet();  // states are freed only when nobody's kernels run
}

}  // namespace tersum::gpu::test
