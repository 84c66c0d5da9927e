#include "cuda/compressed_plan.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "cuda/collective_plan.hpp"
#include "cuda/twin_methods.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

/// What shares of methods without blocks are made of: a few lines of memory.
constexpr std::size_t kCastUnit = 256;

/// Elements of a share from which on warps send several tiles at a time.
constexpr std::uint64_t kLongShare = std::uint64_t{8} << 20;

[[noreturn]] void refuse(const CompressedMethod& method, const std::string& what) {
  throw Error(Code::InvalidArgument, method.compressor().spec() + ": " + what);
}

void check_state(const CompressedMethod& method, const Twin& twin, const TwinState* state,
                 const CompressedSlice& slice, const char* name) {
  const std::uint64_t offset = slice.context.offset;
  if (state == nullptr || state->arrays() != twin.state_arrays())
    refuse(method, std::string("all_reduce() needs the ") + name + " that the method has made");
  if (offset > state->count() || slice.count > state->count() - offset)
    refuse(method, "elements " + std::to_string(offset) + " to " +
                       std::to_string(offset + slice.count) + " are not inside a " + name + " of " +
                       std::to_string(state->count()));
}

TileMemory memory_of(const TwinState* state, std::uint64_t offset) {
  return {state->current(0, offset), state->next(0, offset)};
}

}  // namespace

void share_out(std::size_t count, std::size_t block, int ranks,
               std::uint64_t (&begin)[kMaxPeers + 1]) noexcept {
  const std::size_t blocks = count / block + (count % block != 0 ? 1 : 0);
  const auto parts = static_cast<std::size_t>(ranks);
  for (std::size_t r = 0; r <= parts; ++r) {
    const std::size_t first = blocks / parts * r + std::min(r, blocks % parts);
    begin[r] = std::min(count, first * block);
  }
}

std::size_t share_unit(const CompressedMethod& method) noexcept {
  const std::size_t block = method.parameters().block;
  return block == 0 ? kCastUnit : block;
}

void check_slice(const CompressedMethod& method, const CompressedSlice& slice, ReduceOp op,
                 int ranks) {
  if (op != ReduceOp::Sum && op != ReduceOp::Average)
    refuse(method,
           "gradients are summed or averaged, not combined by " + std::string(to_string(op)));
  if (slice.count > 0 && (slice.input == nullptr || slice.output == nullptr))
    refuse(method, "a tensor is null");
  if (!is_aligned(slice.input, 4) || !is_aligned(slice.output, 4))
    refuse(method, "a tensor is not aligned for fp32");
  if (method.twin().state_arrays() > 0) {
    check_state(method, method.twin(), slice.state, slice, "state");
  }
  if (method.feeds_back_sums()) {
    check_state(method, method.reducer(), slice.reducer_state, slice, "reducer's state");
  }
  const bool draws = method.compressor().traits().randomised;
  const bool fused = method.form() == CompressedMethod::Form::Fused;
  if (draws && fused && slice.context.offset % 8 != 0)
    refuse(method, "slices begin at multiples of a block");
  if (slice.decoded == nullptr && !fused) refuse(method, "a DecodeStatus is needed");
  const std::size_t needed = method.workspace_bytes(slice.count, ranks);
  if (slice.workspace.size() < needed)
    refuse(method, "the workspace has " + std::to_string(slice.workspace.size()) +
                       " bytes, needs " + std::to_string(needed));
}

TileCall plan_tiles(const CompressedMethod& method, const CompressedSlice& slice, ReduceOp op,
                    int ranks) {
  TileCall call{};
  call.input = slice.input;
  call.output = slice.output;
  const std::size_t unit = share_unit(method);
  std::uint64_t begin[kMaxPeers + 1];
  share_out(slice.count, unit, ranks, begin);
  std::uint64_t longest = 0;
  for (int r = 0; r < ranks; ++r) {
    const std::uint64_t count = begin[r + 1] - begin[r];
    longest = std::max(longest, count);
    call.shares[r] = {begin[r], static_cast<std::uint32_t>((count + kTile - 1) / kTile),
                      static_cast<std::uint32_t>(count / kTile),
                      static_cast<std::uint32_t>(count % kTile)};
  }
  call.run = longest >= kLongShare ? kMaxRun : 1;
  call.runs = static_cast<std::uint32_t>((longest + kTile * call.run - 1) / (kTile * call.run));
  const std::uint64_t offset = slice.context.offset;
  if (method.twin().state_arrays() > 0) call.sender = memory_of(slice.state, offset);
  if (method.feeds_back_sums()) call.reducer = memory_of(slice.reducer_state, offset);
  call.aligned = true;
  for (const float* array :
       {slice.input, static_cast<const float*>(slice.output), call.sender.residual,
        static_cast<const float*>(call.sender.residual_next), call.reducer.residual,
        static_cast<const float*>(call.reducer.residual_next)}) {
    call.aligned = call.aligned && is_aligned(array, 16);
  }
  call.block = static_cast<std::uint32_t>(unit);
  call.block_shift = std::countr_zero(call.block);
  call.factor = call.divisor = 1.0f;
  if (op == ReduceOp::Average) {
    const auto size = static_cast<float>(ranks);
    const bool exact = std::has_single_bit(static_cast<unsigned>(ranks));
    (exact ? call.factor : call.divisor) = exact ? 1.0f / size : size;
  }
  call.world_rank = slice.context.rank;
  call.draws = {
      slice.context.seed, slice.context.key, slice.context.step, nullptr, nullptr, offset};
  if (slice.step != nullptr) {
    call.draws.step_counter = slice.step->device();
    if (slice.count_step) {
      call.draws.finished = reinterpret_cast<std::uint32_t*>(slice.step->device() + 1);
    }
  }
  return call;
}

}  // namespace tersum::gpu
