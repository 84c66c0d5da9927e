#include "tersum/communicator.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "src/collectives/collectives.hpp"
#include "src/session.hpp"

namespace tersum {
namespace {

using runtime::CallKind;
using runtime::Operation;
using runtime::Reduction;
using runtime::Signature;

[[noreturn]] void refuse(CallKind kind, const std::string& what) {
  throw Error(Code::InvalidArgument, std::string(to_string(kind)) + ": " + what);
}

CommunicatorState& checked(const std::shared_ptr<CommunicatorState>& state) {
  if (!state)
    throw Error(Code::InvalidState,
                "this Communicator is empty: get one from connect() or split()");
  return *state;
}

/// What every call checks before anything is submitted.
struct Checks {
  CallKind kind;
  const CommunicatorState& state;

  void dtype(DType value) const {
    if (element_bytes(value) == 0)
      refuse(kind, "unknown dtype " + std::to_string(static_cast<int>(value)));
  }
  void op(DType value, ReduceOp op) const {
    if (static_cast<int>(op) >= kReduceOpCount)
      refuse(kind, "unknown operator " + std::to_string(static_cast<int>(op)));
    if (value == DType::Bool && op == ReduceOp::Average)
      refuse(kind,
             "the average of bool has no meaning: use max (any) or min (all), or another dtype");
  }
  void scales(DType value, const CallOptions& options) const {
    if (!std::isfinite(options.pre_scale) || !std::isfinite(options.post_scale))
      refuse(kind, "scales must be finite");
    if (!is_floating(value) && (options.pre_scale != 1.0 || options.post_scale != 1.0))
      refuse(kind, "scales need a floating dtype, not " + std::string(to_string(value)));
  }
  void no_scales(const CallOptions& options) const {
    if (options.pre_scale != 1.0 || options.post_scale != 1.0)
      refuse(kind, "scales belong to reductions");
  }
  void memory(const char* name, const void* data, std::size_t count, DType value) const {
    if (count == 0) return;
    if (count > (std::size_t{1} << 48))
      refuse(kind, "count " + std::to_string(count) + " is beyond any memory");
    if (data == nullptr)
      refuse(kind, std::string(name) + " is null, with " + std::to_string(count) + " elements");
    if (reinterpret_cast<std::uintptr_t>(data) % element_bytes(value) != 0)
      refuse(kind, std::string(name) + " is not aligned to its element type " +
                       std::string(to_string(value)));
  }
  /// True if the tensors are in device memory. Both are, or none (null: has no part in it).
  bool device(const void* input, const void* output, const CallOptions& options) const {
    const auto is_device =
        options.stream_ordered ? runtime::is_known_device_memory : runtime::is_device_memory;
    const bool first = is_device(input ? input : output);
    if (input && output && input != output && is_device(output) != first)
      refuse(kind, "one tensor is in device memory and the other is not");
    return first;
  }
  void peer(const char* name, int rank) const {
    if (rank < 0 || rank >= state.group->size())
      refuse(kind, std::string(name) + " " + std::to_string(rank) + " is outside 0.." +
                       std::to_string(state.group->size() - 1));
  }
};

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::uint64_t scale_digest(const CallOptions& options) {
  return runtime::mix(std::bit_cast<std::uint64_t>(options.pre_scale),
                      std::bit_cast<std::uint64_t>(options.post_scale));
}

void check_timeout(CallKind kind, const CallOptions& options) {
  if (options.timeout.count() < 0) refuse(kind, "the timeout is negative");
}

std::shared_ptr<Operation> make_operation(CommunicatorState& state, const Signature& signature,
                                          const CallOptions& options,
                                          std::shared_ptr<WorkState> work, Operation::Body body) {
  // Without elements there is nothing that would have to come in a stream's order.
  const bool has_tensors = signature.count > 0 || signature.kind == CallKind::AllToAllV;
  if (options.stream.handle != nullptr && has_tensors)
    throw Error(Code::Unsupported,
                "streams belong to device memory; these tensors are in host memory");
  check_timeout(signature.kind, options);
  constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
  const auto timeout =
      options.timeout.count() > 0 ? options.timeout : state.session->config().timeout;
  return std::make_shared<Operation>(state.session->engine(), state.group, signature,
                                     std::move(work), std::min(timeout, kForever), std::move(body));
}

Work start(CommunicatorState& state, const Signature& signature, const CallOptions& options,
           Operation::Body body) {
  auto& engine = state.session->engine();
  auto work = std::make_shared<WorkState>();
  auto operation = make_operation(state, signature, options, work, std::move(body));
  engine.submit(runtime::make_command(
      [&engine, operation]() mutable { engine.start(std::move(operation)); }));
  return Work(std::move(work));
}

Work start_pair(CommunicatorState& state, const Signature& signature, const CallOptions& options,
                int peer, bool sending, Operation::Body body) {
  auto& engine = state.session->engine();
  auto work = std::make_shared<WorkState>();
  auto operation = make_operation(state, signature, options, work, std::move(body));
  engine.submit(runtime::make_command([&engine, operation, peer, sending]() mutable {
    engine.start_pair(std::move(operation), peer, sending);
  }));
  return Work(std::move(work));
}

Signature signature_of(CallKind kind, DType dtype, std::size_t count, ReduceOp op = ReduceOp::Sum,
                       int root = -1, std::uint64_t detail = 0) {
  Signature signature;
  signature.kind = kind;
  signature.dtype = dtype;
  signature.op = op;
  signature.root = root;
  signature.count = count;
  signature.detail = detail;
  return signature;
}

Reduction reduction_of(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                       const CallOptions& options) {
  return {input, output, count, dtype, op, options.pre_scale, options.post_scale};
}

runtime::DeviceCall device_reduction(CallKind kind, const void* input, void* output,
                                     std::size_t count, DType dtype, ReduceOp op,
                                     const CallOptions& options) {
  check_timeout(kind, options);
  return {.kind = kind,
          .input = input,
          .output = output,
          .count = count,
          .dtype = dtype,
          .op = op,
          .pre_scale = options.pre_scale,
          .post_scale = options.post_scale,
          .timeout = options.timeout,
          .stream = options.stream,
          .stream_ordered = options.stream_ordered};
}

runtime::DeviceCall device_copy(CallKind kind, const void* input, void* output, std::size_t count,
                                DType dtype, int peer, const CallOptions& options) {
  check_timeout(kind, options);
  return {.kind = kind,
          .input = input,
          .output = output,
          .count = count,
          .dtype = dtype,
          .peer = peer,
          .timeout = options.timeout,
          .stream = options.stream,
          .stream_ordered = options.stream_ordered};
}

}  // namespace

int Communicator::rank() const {
  return checked(state_).group->rank();
}
int Communicator::size() const {
  return checked(state_).group->size();
}
const Config& Communicator::config() const {
  return checked(state_).session->config();
}
Status Communicator::status() const {
  return checked(state_).status();
}
std::uint64_t Communicator::sent_bytes() const {
  return checked(state_).group->sent_bytes.load();
}

int Communicator::world_rank(int rank) const {
  const auto& group = *checked(state_).group;
  if (rank < 0 || rank >= group.size())
    throw Error(Code::InvalidArgument, "rank " + std::to_string(rank) + " is outside 0.." +
                                           std::to_string(group.size() - 1));
  return group.world(rank);
}

Work Communicator::all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                              ReduceOp op, const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::AllReduce, state};
  check.dtype(dtype);
  check.op(dtype, op);
  check.scales(dtype, options);
  check.memory("input", input, count, dtype);
  check.memory("output", output, count, dtype);
  if (count > 0 && check.device(input, output, options))
    return state.device().start(
        device_reduction(check.kind, input, output, count, dtype, op, options));
  const auto call = reduction_of(input, output, count, dtype, op, options);
  const auto algorithm = runtime::parse_algorithm(config().algorithm);
  const auto signature =
      signature_of(CallKind::AllReduce, dtype, count, op, -1, scale_digest(options));
  return start(state, signature, options, [call, algorithm](Operation& operation) {
    return runtime::all_reduce(operation, call, algorithm);
  });
}

Work Communicator::reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                                  ReduceOp op, const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::ReduceScatter, state};
  check.dtype(dtype);
  check.op(dtype, op);
  check.scales(dtype, options);
  check.memory("input", input, count, dtype);
  check.memory("output", output, count, dtype);
  if (count > 0 && check.device(input, output, options))
    return state.device().start(
        device_reduction(check.kind, input, output, count, dtype, op, options));
  const auto call = reduction_of(input, output, count, dtype, op, options);
  return start(
      state, signature_of(CallKind::ReduceScatter, dtype, count, op, -1, scale_digest(options)),
      options, [call](Operation& operation) { return runtime::reduce_scatter(operation, call); });
}

Work Communicator::all_gather(const void* input, void* output, std::size_t count, DType dtype,
                              const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::AllGather, state};
  check.dtype(dtype);
  check.no_scales(options);
  check.memory("input", input, count, dtype);
  check.memory("output", output, count, dtype);
  if (count > 0 && check.device(input, output, options))
    return state.device().start(device_copy(check.kind, input, output, count, dtype, -1, options));
  std::vector<std::size_t> counts(static_cast<std::size_t>(state.group->size()), count);
  return start(state, signature_of(CallKind::AllGather, dtype, count), options,
               [=](Operation& operation) {
                 return runtime::all_gather(operation, input, output, counts, dtype);
               });
}

Work Communicator::all_gather_v(const void* input, void* output,
                                std::span<const std::size_t> counts, DType dtype,
                                const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::AllGatherV, state};
  check.dtype(dtype);
  check.no_scales(options);
  if (counts.size() != static_cast<std::size_t>(state.group->size()))
    refuse(check.kind, "counts has " + std::to_string(counts.size()) + " entries for " +
                           std::to_string(state.group->size()) + " ranks");
  std::size_t total = 0;
  for (std::size_t count : counts) {
    check.memory("output", output, count, dtype);
    total += count;
  }
  const std::size_t own = counts[static_cast<std::size_t>(state.group->rank())];
  check.memory("input", input, own, dtype);
  std::vector<std::size_t> copy(counts.begin(), counts.end());
  if (total > 0 && check.device(own > 0 ? input : nullptr, output, options)) {
    auto on_device = device_copy(check.kind, input, output, total, dtype, -1, options);
    on_device.receive_counts = std::move(copy);
    return state.device().start(on_device);
  }
  const std::uint64_t digest = runtime::digest_of(copy);
  return start(state, signature_of(CallKind::AllGatherV, dtype, total, ReduceOp::Sum, -1, digest),
               options, [=](Operation& operation) {
                 return runtime::all_gather(operation, input, output, copy, dtype);
               });
}

Work Communicator::broadcast(void* data, std::size_t count, DType dtype, int root,
                             const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::Broadcast, state};
  check.dtype(dtype);
  check.no_scales(options);
  check.peer("root", root);
  check.memory("data", data, count, dtype);
  if (count > 0 && check.device(data, data, options))
    return state.device().start(device_copy(check.kind, data, data, count, dtype, root, options));
  const std::size_t bytes = count * element_bytes(dtype);
  return start(
      state, signature_of(CallKind::Broadcast, dtype, count, ReduceOp::Sum, root), options,
      [=](Operation& operation) { return runtime::broadcast(operation, data, bytes, root); });
}

Work Communicator::reduce(const void* input, void* output, std::size_t count, DType dtype,
                          ReduceOp op, int root, const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::Reduce, state};
  check.dtype(dtype);
  check.op(dtype, op);
  check.scales(dtype, options);
  check.peer("root", root);
  check.memory("input", input, count, dtype);
  if (state.group->rank() == root) check.memory("output", output, count, dtype);
  const void* result = state.group->rank() == root ? output : nullptr;
  if (count > 0 && check.device(input, result, options)) {
    auto on_device = device_reduction(check.kind, input, output, count, dtype, op, options);
    on_device.peer = root;
    return state.device().start(on_device);
  }
  const auto call = reduction_of(input, output, count, dtype, op, options);
  return start(
      state, signature_of(CallKind::Reduce, dtype, count, op, root, scale_digest(options)), options,
      [call, root](Operation& operation) { return runtime::reduce(operation, call, root); });
}

Work Communicator::all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                              const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::AllToAll, state};
  check.dtype(dtype);
  check.no_scales(options);
  check.memory("input", input, count, dtype);
  check.memory("output", output, count, dtype);
  if (count > 0 && check.device(input, output, options))
    return state.device().start(device_copy(check.kind, input, output, count, dtype, -1, options));
  std::vector<std::size_t> counts(static_cast<std::size_t>(state.group->size()), count);
  return start(state, signature_of(CallKind::AllToAll, dtype, count), options,
               [=](Operation& operation) {
                 return runtime::all_to_all(operation, input, counts, output, counts, dtype);
               });
}

Work Communicator::all_to_all_v(const void* input, std::span<const std::size_t> send_counts,
                                void* output, std::span<const std::size_t> receive_counts,
                                DType dtype, const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::AllToAllV, state};
  check.dtype(dtype);
  check.no_scales(options);
  const auto size = static_cast<std::size_t>(state.group->size()),
             rank = static_cast<std::size_t>(state.group->rank());
  if (send_counts.size() != size || receive_counts.size() != size)
    refuse(check.kind, "send_counts and receive_counts need one entry for each of " +
                           std::to_string(size) + " ranks");
  if (send_counts[rank] != receive_counts[rank])
    refuse(check.kind, "this rank sends itself " + std::to_string(send_counts[rank]) +
                           " elements but expects " + std::to_string(receive_counts[rank]));
  for (std::size_t count : send_counts) check.memory("input", input, count, dtype);
  for (std::size_t count : receive_counts) check.memory("output", output, count, dtype);
  std::vector<std::size_t> sends(send_counts.begin(), send_counts.end()),
      receives(receive_counts.begin(), receive_counts.end());
  const bool sends_any = sum(sends) > 0, receives_any = sum(receives) > 0;
  const bool idle = !sends_any && !receives_any;
  // A rank that has no part in it says by its stream which way the others go.
  if (idle ? options.stream.handle != nullptr || check.device(input, output, options)
           : check.device(sends_any ? input : nullptr, receives_any ? output : nullptr, options)) {
    auto on_device = device_copy(check.kind, input, output, 0, dtype, -1, options);
    on_device.send_counts = std::move(sends);
    on_device.receive_counts = std::move(receives);
    return state.device().start(on_device);
  }
  return start(state, signature_of(CallKind::AllToAllV, dtype, 0), options,
               [=](Operation& operation) {
                 return runtime::all_to_all(operation, input, sends, output, receives, dtype);
               });
}

Work Communicator::send(const void* data, std::size_t count, DType dtype, int peer,
                        const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::PointToPoint, state};
  check.dtype(dtype);
  check.no_scales(options);
  check.peer("peer", peer);
  if (peer == state.group->rank()) refuse(check.kind, "a rank cannot send to itself");
  check.memory("data", data, count, dtype);
  if (count > 0 && check.device(data, data, options)) {
    auto on_device = device_copy(check.kind, data, nullptr, count, dtype, peer, options);
    on_device.sending = true;
    return state.device().start(on_device);
  }
  const std::size_t bytes = count * element_bytes(dtype);
  return start_pair(
      state, signature_of(CallKind::PointToPoint, dtype, count), options, peer, true,
      [=](Operation& operation) { return runtime::send(operation, data, bytes, peer); });
}

Work Communicator::receive(void* data, std::size_t count, DType dtype, int peer,
                           const CallOptions& options) {
  auto& state = checked(state_);
  const Checks check{CallKind::PointToPoint, state};
  check.dtype(dtype);
  check.no_scales(options);
  check.peer("peer", peer);
  if (peer == state.group->rank()) refuse(check.kind, "a rank cannot receive from itself");
  check.memory("data", data, count, dtype);
  if (count > 0 && check.device(data, data, options))
    return state.device().start(
        device_copy(check.kind, nullptr, data, count, dtype, peer, options));
  const std::size_t bytes = count * element_bytes(dtype);
  return start_pair(
      state, signature_of(CallKind::PointToPoint, dtype, count), options, peer, false,
      [=](Operation& operation) { return runtime::receive(operation, data, bytes, peer); });
}

Work Communicator::barrier(const CallOptions& options) {
  auto& state = checked(state_);
  Checks{CallKind::Barrier, state}.no_scales(options);
  if (options.stream.handle != nullptr)
    return state.device().start(
        device_copy(CallKind::Barrier, nullptr, nullptr, 0, DType::UInt8, -1, options));
  return start(state, signature_of(CallKind::Barrier, DType::UInt8, 0), options,
               [](Operation& operation) { return runtime::barrier(operation); });
}

void Communicator::abort(const std::string& reason) {
  auto& state = checked(state_);
  const Status status(Code::Aborted, reason, "rank " + std::to_string(state.group->rank()));
  state.session->run_on_engine(
      [&] { state.session->engine().fail_group(*state.group, status, true); });
}

}  // namespace tersum
