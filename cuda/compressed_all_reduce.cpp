#include "cuda/compressed_all_reduce.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr auto kSteps = TwinState::Steps::Final;

/// In front of saved states.
struct SavedHead {
  std::uint64_t step;
  std::uint64_t state_bytes;
};

}  // namespace

CompressedAllReduce::CompressedAllReduce(CompressedCommunicator& communicator,
                                         std::shared_ptr<const Compressor> compressor,
                                         std::size_t count, std::uint64_t seed, std::uint64_t key,
                                         StreamView stream)
    : communicator_(communicator),
      method_(std::move(compressor)),
      count_(count),
      context_{seed, 0, key, 0, static_cast<std::uint32_t>(communicator.peers().rank())},
      step_(stream),
      state_(method_.make_state(count, stream, kSteps)),
      reducer_state_(method_.make_reducer_state(count, stream, kSteps)),
      workspace_(method_.workspace_bytes(count, communicator.peers().size())),
      decoded_(stream) {}

void CompressedAllReduce::all_reduce(const float* input, float* output, ReduceOp op,
                                     StreamView stream) {
  CompressedSlice slice;
  slice.input = input;
  slice.output = output;
  slice.count = count_;
  slice.context = context_;
  if (method_.compressor().traits().randomised) {
    slice.step = &step_;
    slice.count_step = true;
  }
  slice.state = state_.get();
  slice.reducer_state = reducer_state_.get();
  slice.workspace = {workspace_.data(), workspace_.bytes()};
  slice.decoded = &decoded_;
  communicator_.all_reduce(method_, slice, op, stream);
}

std::vector<std::byte> CompressedAllReduce::save(StreamView stream) const {
  std::vector<std::byte> state, reducer;
  if (state_) state = state_->save(stream);
  if (reducer_state_) reducer = reducer_state_->save(stream);
  const SavedHead head{step_.get(stream), state.size()};
  std::vector<std::byte> bytes(sizeof(head) + state.size() + reducer.size());
  std::byte* to = bytes.data();
  std::memcpy(to, &head, sizeof(head));
  to = std::copy(state.begin(), state.end(), to + sizeof(head));
  std::copy(reducer.begin(), reducer.end(), to);
  return bytes;
}

void CompressedAllReduce::load(std::span<const std::byte> bytes, StreamView stream) {
  const std::size_t state = state_ ? state_->saved_bytes() : 0;
  const std::size_t reducer = reducer_state_ ? reducer_state_->saved_bytes() : 0;
  SavedHead head{};
  if (bytes.size() >= sizeof(head)) std::memcpy(&head, bytes.data(), sizeof(head));
  if (bytes.size() != sizeof(head) + state + reducer || head.state_bytes != state) {
    throw Error(Code::InvalidArgument,
                method_.compressor().spec() + ": " + std::to_string(bytes.size()) +
                    " bytes are no state of " + std::to_string(count_) + " elements");
  }
  const auto first = bytes.subspan(sizeof(head), state);
  const auto second = bytes.subspan(sizeof(head) + state);
  if (state_) state_->validate(first);
  if (reducer_state_) reducer_state_->validate(second);
  if (state_) state_->load(first, stream);
  if (reducer_state_) reducer_state_->load(second, stream);
  step_.set(head.step, stream);
  stream.synchronize();
}

}  // namespace tersum::gpu
