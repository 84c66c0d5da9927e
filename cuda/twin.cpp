#include "cuda/twin.hpp"

#include <cuda_runtime_api.h>

#include <limits>

#include "compressors/payload.hpp"
#include "cuda/error.hpp"
#include "cuda/kernel_copy.hpp"

namespace tersum::gpu {

DecodeStatus::DecodeStatus(StreamView stream)
    : word_(sizeof(std::uint32_t)), copy_(sizeof(std::uint32_t)) {
  clear(stream);
}

void DecodeStatus::clear(StreamView stream) const {
  check(cudaMemsetAsync(word_.data(), 0, word_.bytes(), stream.get()), "cudaMemsetAsync");
}

void DecodeStatus::fetch(StreamView stream) const {
  copy_by_kernel(stream, copy_.data(), word_.data(), word_.bytes());
}

Status DecodeStatus::status() const {
  switch (*copy_.as<volatile std::uint32_t>()) {
    case kNone:
      return Status::ok();
    case kHeader:
      return {Code::Protocol, "payload: the header is not that of this method and count"};
    case kScale:
      return {Code::Protocol, "payload: a scale is negative or infinite"};
    case kPadding:
      return {Code::Protocol, "payload: unused bits are set"};
    default:
      return {Code::Protocol, "payload: indices are not k increasing numbers below count"};
  }
}

std::unique_ptr<TwinState> Twin::make_state(std::size_t count, StreamView stream,
                                            TwinState::Steps steps) const {
  return std::make_unique<TwinState>(arrays_, count, stream, arrays_ > 0 && masks_sent(), steps);
}

void Twin::check_workspace(std::size_t count, std::span<std::byte> workspace) const {
  const std::size_t needed = workspace_bytes(count);
  if (workspace.size() < needed) {
    throw Error(Code::InvalidArgument, spec_ + ": the workspace has " +
                                           std::to_string(workspace.size()) +
                                           " bytes, needs workspace_bytes(" +
                                           std::to_string(count) + ") = " + std::to_string(needed));
  }
}

void Twin::compress(StreamView stream, const float* input, std::size_t count,
                    const TwinContext& context, TwinState* state, std::byte* payload,
                    std::span<std::byte> workspace) const {
  if (payload_bytes(count) - compressors::kHeaderBytes >
      std::numeric_limits<std::uint32_t>::max()) {
    throw Error(Code::Unsupported, spec_ + ": " + std::to_string(count) +
                                       " elements make a payload beyond 4 GiB; cut the gradient "
                                       "into smaller slices");
  }
  check_workspace(count, workspace);
  Input in{input, count, nullptr, nullptr, nullptr, nullptr, momentum_, nullptr, nullptr, nullptr};
  if (state != nullptr && state->arrays() == arrays_) in.hint = state->hint();
  if (arrays_ > 0) {
    if (state == nullptr || state->arrays() != arrays_ || state->masked() != masks_sent()) {
      throw Error(Code::InvalidArgument,
                  spec_ + ": compress() needs the state that make_state() of it gave");
    }
    if (context.offset > state->count() || count > state->count() - context.offset) {
      throw Error(Code::InvalidArgument, spec_ + ": elements " + std::to_string(context.offset) +
                                             " to " + std::to_string(context.offset + count) +
                                             " are not inside a state of " +
                                             std::to_string(state->count()));
    }
    if (state->masked() && count != state->count()) {
      throw Error(Code::InvalidArgument, spec_ + " works on whole gradients only; this one has " +
                                             std::to_string(state->count()) + " elements, not " +
                                             std::to_string(count));
    }
    in.mask = state->current_mask();
    in.mask_next = state->next_mask();
    in.residual = state->current(0, context.offset);
    in.residual_next = state->next(0, context.offset);
    if (arrays_ > 1) {
      in.velocity = state->current(1, context.offset);
      in.velocity_next = state->next(1, context.offset);
    }
  }
  encode(stream, in, context, payload, workspace.data());
  if (arrays_ > 0) state->mark_written(context.offset, count);
}

void Twin::decode_checked(StreamView stream, Apply apply, std::span<const std::byte> payload,
                          const TwinContext& context, const Output& output,
                          std::span<std::byte> workspace) const {
  const std::size_t expected = payload_bytes(output.count);
  if (payload.size() != expected) {
    throw Error(Code::Protocol, spec_ + " payload: size is " + std::to_string(payload.size()) +
                                    ", expected " + std::to_string(expected));
  }
  check_workspace(output.count, workspace);
  decode(stream, apply, output, context, workspace.data());
}

void Twin::decompress(StreamView stream, std::span<const std::byte> payload,
                      const TwinContext& context, float* output, std::size_t count,
                      std::span<std::byte> workspace, const DecodeStatus& status) const {
  decode_checked(stream, Apply::Set, payload, context,
                 {payload.data(), output, count, 1.0f, status.device()}, workspace);
}

void Twin::decompress_add(StreamView stream, std::span<const std::byte> payload,
                          const TwinContext& context, float scale, float* accumulator,
                          std::size_t count, std::span<std::byte> workspace,
                          const DecodeStatus& status) const {
  decode_checked(stream, Apply::Add, payload, context,
                 {payload.data(), accumulator, count, scale, status.device()}, workspace);
}

void Twin::clear_sent(StreamView stream, std::span<const std::byte> payload,
                      const TwinContext& context, float* values, std::size_t count,
                      std::span<std::byte> workspace, const DecodeStatus& status) const {
  decode_checked(stream, Apply::Clear, payload, context,
                 {payload.data(), values, count, 0.0f, status.device()}, workspace);
}

}  // namespace tersum::gpu
