#include <bit>
#include <string>
#include <utility>

#include "compressors/wire_ids.hpp"
#include "cuda/compressed_composed.hpp"
#include "cuda/compressed_layout.hpp"
#include "cuda/twin_methods.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

std::unique_ptr<Twin> twin_of(const Compressor& compressor) {
  auto twin = Twin::make(compressor);
  if (twin == nullptr) {
    throw Error(Code::Unsupported, compressor.spec() + " has no form on the GPU");
  }
  return twin;
}

CompressedMethod::Form form_of(const Compressor& compressor, const TwinParameters& parameters) {
  if (parameters.wire_id == compressors::wire_id::kNone) {
    throw Error(Code::Unsupported, "none compresses nothing: use PeerCommunicator::all_reduce()");
  }
  if (compressor.traits().aggregation == Aggregation::SparseMerge) {
    return CompressedMethod::Form::Sparse;
  }
  if (parameters.wire_id == compressors::wire_id::kRandomK) return CompressedMethod::Form::Linear;
  const bool tiles =
      parameters.block == 0 || (std::has_single_bit(parameters.block) && parameters.block <= kTile);
  return tiles && parameters.arrays < 2 ? CompressedMethod::Form::Fused
                                        : CompressedMethod::Form::Composed;
}

std::unique_ptr<TwinState> state_of(const Twin& twin, CompressedMethod::Form form,
                                    std::size_t count, StreamView stream, TwinState::Steps steps) {
  if (twin.state_arrays() == 0) return nullptr;
  if (form == CompressedMethod::Form::Linear && steps == TwinState::Steps::Final) {
    throw Error(Code::Unsupported,
                "random-k reads a residual after it has written the next one: "
                "its steps must be provisional");
  }
  return twin.make_state(count, stream, steps);
}

}  // namespace

CompressedMethod::CompressedMethod(std::shared_ptr<const Compressor> compressor)
    : compressor_(std::move(compressor)), twin_(twin_of(*compressor_)) {
  parameters_ = std::make_unique<TwinParameters>(*read_parameters(*compressor_));
  form_ = form_of(*compressor_, *parameters_);
  // Sums of linear methods are rounded without feedback.
  auto reducer = compressor_->reducer();
  if (parameters_->block == 0 && form_ == Form::Composed) {
    reducer = make_compressor(compressor_->traits().name);
  }
  reducer_ = twin_of(reducer ? *reducer : *compressor_);
}

CompressedMethod::~CompressedMethod() = default;
CompressedMethod::CompressedMethod(CompressedMethod&&) noexcept = default;

std::unique_ptr<TwinState> CompressedMethod::make_state(std::size_t count, StreamView stream,
                                                        TwinState::Steps steps) const {
  return state_of(*twin_, form_, count, stream, steps);
}

std::unique_ptr<TwinState> CompressedMethod::make_reducer_state(std::size_t count,
                                                                StreamView stream,
                                                                TwinState::Steps steps) const {
  return feeds_back_sums() ? state_of(*reducer_, form_, count, stream, steps) : nullptr;
}

bool CompressedMethod::feeds_back_sums() const noexcept {
  return compressor_->traits().aggregation == Aggregation::Recompress &&
         reducer_->state_arrays() > 0;
}

std::size_t CompressedMethod::workspace_bytes(std::size_t count, int ranks) const {
  return composed_bytes(*this, count, ranks);
}

}  // namespace tersum::gpu
