#include "cuda/collectives.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "cuda/buffer.hpp"
#include "cuda/collective_kernels.hpp"
#include "cuda/collective_plan.hpp"
#include "cuda/copy_engines.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {

std::string_view to_string(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::Auto:
      return "auto";
    case Algorithm::Packets:
      return "packets";
    case Algorithm::PacketsTwoShot:
      return "packets-two-shot";
    case Algorithm::Lines:
      return "lines";
    case Algorithm::LinesTwoShot:
      return "lines-two-shot";
    case Algorithm::Push:
      return "push";
    case Algorithm::PushTwoShot:
      return "push-two-shot";
    case Algorithm::CopyEngines:
      return "copy-engines";
  }
  return "unknown";
}

namespace {

bool is_two_shot(Algorithm algorithm) noexcept {
  return algorithm == Algorithm::PacketsTwoShot || algorithm == Algorithm::LinesTwoShot ||
         algorithm == Algorithm::PushTwoShot;
}

}  // namespace

struct PeerCommunicator::State {
  PeerMap map;
  PeerSettings settings;
  Group group{};  // before the arena, which fills in its geometry
  int device = 0;
  DeviceBuffer arena;
  DeviceBuffer progress;
  PinnedBuffer mailbox;
  std::optional<CopyEngines> engines;  // only where they are used: streams are not for nothing
  bool has_lines = false;
  bool closed = false;

  State(int rank, int size, AllGatherBlobs all_gather, const PeerSettings& wanted)
      : map(rank, size, std::move(all_gather)),
        settings(complete_settings(wanted, size)),
        arena(lay_out(group, settings, rank, size)),
        progress(sizeof(Progress)),
        mailbox(sizeof(Mailbox)) {
    check(cudaGetDevice(&device), "cudaGetDevice");
    if (group.staging_offset != 0) engines.emplace(settings);
    load_packet_kernels();
    load_line_kernels();
    load_push_kernels();
    load_staging_kernels();
    clear();
    const PeerBuffers arenas = map.map(arena);
    if (!map.agree(arenas.complete())) {
      throw Error(Code::Unsupported, "a peer's communication memory cannot be mapped");
    }
    has_lines = map.agree(map.has_nvlink());
    if (!has_lines) settings.table.lines_bytes = 0;
    std::copy(arenas.data.begin(), arenas.data.end(), group.arena);
    group.progress = progress.as<Progress>();
    group.mailbox = mailbox.as<Mailbox>();
  }

  /// Blocks until it is done.
  void clear() const {
    check(cudaMemset(arena.data(), 0, arena.bytes()), "cudaMemset");
    check(cudaMemset(progress.data(), 0, progress.bytes()), "cudaMemset");
    check(cudaMemset(&progress.as<Progress>()->piece_number, 1, 1), "cudaMemset");
    if (group.staging_offset != 0) {
      launch_make_blank(arena.data() + group.staging_offset, arena.bytes() - group.staging_offset,
                        nullptr);
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  int rank() const noexcept { return group.rank; }
  int size() const noexcept { return group.size; }

  void run(const Exchange& exchange, DType dtype, Algorithm algorithm, StreamView stream) const {
    const DeviceGuard guard(device);
    switch (algorithm) {
      case Algorithm::Packets:
        return launch_packets(group, exchange, dtype, stream);
      case Algorithm::Lines:
        return launch_lines(group, exchange, dtype, stream);
      case Algorithm::CopyEngines:
        return engines->run(group, exchange, dtype, stream);
      default:
        break;
    }
    Exchange chunked = exchange;
    const int blocks = choose_chunks(chunked, settings, size());
    launch_push(group, chunked, dtype, blocks, stream);
  }

  /// Moves runs of which each rank knows only its own: by queues, in chunks of a fixed size.
  void run_uneven(Exchange& exchange, StreamView stream) const {
    const DeviceGuard guard(device);
    set_alignment(exchange, false);
    const int blocks = choose_fixed_chunks(exchange, settings);
    launch_push(group, exchange, copy_type(exchange), blocks, stream);
  }

  /// Throws unless this group can carry out runs of `bytes` in this way.
  void check_possible(Algorithm algorithm, std::uint64_t bytes) const {
    const auto refuse = [&](Code code, const std::string& why) {
      throw Error(code, std::string(to_string(algorithm)) + " " + why);
    };
    const auto limit = [&](std::size_t most) {
      if (bytes > most)
        refuse(Code::InvalidArgument, "hold at most " + std::to_string(most) + " bytes");
    };
    switch (algorithm) {
      case Algorithm::Packets:
      case Algorithm::PacketsTwoShot:
        return limit(kPacketCapacity);
      case Algorithm::Lines:
      case Algorithm::LinesTwoShot:
        if (!has_lines) refuse(Code::Unsupported, "need NVLink between the GPUs");
        return limit(line_capacity(size()));
      case Algorithm::CopyEngines:
        if (!engines) refuse(Code::Unsupported, "serve two ranks, with the setting copy_engines");
        return;
      default:
        return;
    }
  }

  /// An exchange whose runs are set, of at most `bytes` each. Without a dtype bytes only move.
  void carry_out(Exchange& exchange, std::optional<DType> dtype, std::uint64_t bytes,
                 Algorithm algorithm, StreamView stream) const {
    if (algorithm == Algorithm::Auto) algorithm = choose_exchange(settings.table, bytes);
    if (is_two_shot(algorithm)) {
      throw Error(Code::InvalidArgument,
                  std::string(to_string(algorithm)) + " is for all_reduce only");
    }
    check_possible(algorithm, bytes);
    set_alignment(exchange, algorithm == Algorithm::Packets);
    run(exchange, dtype ? *dtype : copy_type(exchange), algorithm, stream);
  }

  void all_reduce_two_shot(const Exchange& shares, DType dtype, Algorithm algorithm,
                           StreamView stream) const {
    const DeviceGuard guard(device);
    if (algorithm == Algorithm::PacketsTwoShot) {
      return launch_packets_two_shot(group, shares, dtype, stream);
    }
    if (algorithm == Algorithm::LinesTwoShot) {
      return launch_lines_two_shot(group, shares, dtype, stream);
    }
    const std::uint64_t own = shares.place[rank()].offset;
    Exchange scatter = shares;  // each share goes to its owner
    for (int peer = 0; peer < size(); ++peer) {
      scatter.send[peer] = shares.place[peer];
      scatter.place[peer] = shares.place[rank()];
    }
    run(scatter, dtype, Algorithm::Push, stream);
    Exchange gather = shares;
    gather.combine = false;
    gather.input = shares.output + own;
    for (int peer = 0; peer < size(); ++peer) {
      gather.send[peer] = {0, shares.place[rank()].bytes};
    }
    run(gather, copy_type(gather), Algorithm::Push, stream);
  }
};

PeerCommunicator::PeerCommunicator(int rank, int size, AllGatherBlobs all_gather,
                                   PeerSettings settings) {
  if (size > kMaxPeers) {
    throw Error(
        Code::InvalidArgument,
        std::to_string(size) + " ranks: a group of peers has at most " + std::to_string(kMaxPeers));
  }
  state_ = std::make_unique<State>(rank, size, std::move(all_gather), settings);
}

PeerCommunicator::~PeerCommunicator() {
  if (!state_->closed) abort();  // ends kernels that would wait for peers
}

int PeerCommunicator::rank() const noexcept {
  return state_->rank();
}

int PeerCommunicator::size() const noexcept {
  return state_->size();
}

int PeerCommunicator::device() const noexcept {
  return state_->device;
}

const Group& PeerCommunicator::group() const noexcept {
  return state_->group;
}

std::size_t PeerCommunicator::memory_bytes() const noexcept {
  return state_->arena.bytes() + state_->progress.bytes();
}

Algorithm PeerCommunicator::all_reduce_algorithm(std::size_t bytes) const noexcept {
  return choose_all_reduce(state_->settings.table, bytes, size());
}

void PeerCommunicator::all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                                  ReduceOp op, StreamView stream, Scales scales,
                                  Algorithm algorithm) {
  const Arithmetic arithmetic = checked_arithmetic(dtype, op, scales);
  check_tensors(input, output, dtype);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  Exchange exchange = new_exchange(input, output, arithmetic);
  algorithm = algorithm == Algorithm::Auto ? all_reduce_algorithm(bytes)
                                           : without_idle_step(algorithm, size());
  exchange.combine = true;
  if (is_two_shot(algorithm)) {
    const std::uint64_t share = share_bytes(bytes, size());
    state_->check_possible(algorithm, share);
    for (int peer = 0; peer < size(); ++peer) {
      exchange.place[peer] = share_of(bytes, share, peer);
    }
    set_alignment(exchange, algorithm == Algorithm::PacketsTwoShot);
    return state_->all_reduce_two_shot(exchange, dtype, algorithm, stream);
  }
  for (int peer = 0; peer < size(); ++peer) {
    exchange.send[peer] = exchange.place[peer] = {0, bytes};
  }
  state_->carry_out(exchange, dtype, bytes, algorithm, stream);
}

void PeerCommunicator::reduce_scatter(const void* input, void* output, std::size_t count,
                                      DType dtype, ReduceOp op, StreamView stream, Scales scales,
                                      Algorithm algorithm) {
  Exchange exchange = new_exchange(input, output, checked_arithmetic(dtype, op, scales));
  check_tensors(input, output, dtype);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  exchange.combine = true;
  for (int peer = 0; peer < size(); ++peer) {
    exchange.send[peer] = {static_cast<std::uint64_t>(peer) * bytes, bytes};
    exchange.place[peer] = {0, bytes};
  }
  state_->carry_out(exchange, dtype, bytes, algorithm, stream);
}

void PeerCommunicator::all_gather(const void* input, void* output, std::size_t count, DType dtype,
                                  StreamView stream, Algorithm algorithm) {
  Exchange exchange = new_exchange(input, output, {});
  check_tensors(input, output, dtype);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  for (int peer = 0; peer < size(); ++peer) {
    exchange.send[peer] = {0, bytes};
    exchange.place[peer] = {static_cast<std::uint64_t>(peer) * bytes, bytes};
  }
  state_->carry_out(exchange, std::nullopt, bytes, algorithm, stream);
}

void PeerCommunicator::broadcast(const void* input, void* output, std::size_t count, DType dtype,
                                 int root, StreamView stream, Algorithm algorithm) {
  check_rank(root, size(), "root");
  Exchange exchange = new_exchange(input, output, {});
  check_tensors(rank() == root ? input : output, output, dtype);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  if (rank() == root) {
    for (int peer = 0; peer < size(); ++peer) exchange.send[peer] = {0, bytes};
  }
  exchange.place[root] = {0, bytes};
  state_->carry_out(exchange, std::nullopt, bytes, algorithm, stream);
}

void PeerCommunicator::reduce(const void* input, void* output, std::size_t count, DType dtype,
                              ReduceOp op, int root, StreamView stream, Scales scales,
                              Algorithm algorithm) {
  check_rank(root, size(), "root");
  Exchange exchange = new_exchange(input, output, checked_arithmetic(dtype, op, scales));
  check_tensors(input, rank() == root ? output : input, dtype);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  exchange.send[root] = {0, bytes};
  if (rank() == root) {
    exchange.combine = true;
    for (int peer = 0; peer < size(); ++peer) exchange.place[peer] = {0, bytes};
  }
  state_->carry_out(exchange, dtype, bytes, algorithm, stream);
}

void PeerCommunicator::all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                                  StreamView stream, Algorithm algorithm) {
  Exchange exchange = new_exchange(input, output, {});
  check_tensors(input, output, dtype);
  if (count == 0) return;
  const std::uint64_t bytes = count * element_bytes(dtype);
  for (int peer = 0; peer < size(); ++peer) {
    exchange.send[peer] = {static_cast<std::uint64_t>(peer) * bytes, bytes};
    exchange.place[peer] = exchange.send[peer];
  }
  state_->carry_out(exchange, std::nullopt, bytes, algorithm, stream);
}

void PeerCommunicator::all_gather_v(const void* input, void* output,
                                    std::span<const std::size_t> counts, DType dtype,
                                    StreamView stream, Algorithm algorithm) {
  check_counts(counts, size(), "counts");
  Exchange exchange = new_exchange(input, output, {});
  check_tensors(input, output, dtype);
  place_runs(exchange.place, counts, element_bytes(dtype));
  std::uint64_t longest = 0;
  for (int peer = 0; peer < size(); ++peer) {
    exchange.send[peer] = {0, exchange.place[rank()].bytes};
    longest = std::max(longest, exchange.place[peer].bytes);
  }
  if (longest > 0) state_->carry_out(exchange, std::nullopt, longest, algorithm, stream);
}

void PeerCommunicator::all_to_all_v(const void* input, std::span<const std::size_t> send_counts,
                                    void* output, std::span<const std::size_t> receive_counts,
                                    DType dtype, StreamView stream) {
  check_counts(send_counts, size(), "send_counts");
  check_counts(receive_counts, size(), "receive_counts");
  Exchange exchange = new_exchange(input, output, {});
  check_tensors(input, output, dtype);
  place_runs(exchange.send, send_counts, element_bytes(dtype));
  place_runs(exchange.place, receive_counts, element_bytes(dtype));
  if (exchange.send[rank()].bytes != exchange.place[rank()].bytes) {
    throw Error(Code::InvalidArgument, "what a rank sends to itself must be what it receives");
  }
  if (size() > 2) return state_->run_uneven(exchange, stream);
  // Each rank of a pair knows all runs that travel; those that stay are nobody else's business.
  Range& kept = exchange.send[rank()];
  if (kept.bytes > 0) {
    const DeviceGuard guard(state_->device);
    check(cudaMemcpyAsync(exchange.output + exchange.place[rank()].offset,
                          exchange.input + kept.offset, kept.bytes, cudaMemcpyDeviceToDevice,
                          stream.get()),
          "cudaMemcpyAsync");
  }
  kept.bytes = exchange.place[rank()].bytes = 0;
  if (size() == 1) return;
  const std::uint64_t longest =
      std::max(exchange.send[1 - rank()].bytes, exchange.place[1 - rank()].bytes);
  if (longest > 0) state_->carry_out(exchange, std::nullopt, longest, Algorithm::Auto, stream);
}

void PeerCommunicator::send(const void* input, std::size_t count, DType dtype, int peer,
                            StreamView stream) {
  send_receive(input, peer, nullptr, -1, count, dtype, stream);
}

void PeerCommunicator::receive(void* output, std::size_t count, DType dtype, int peer,
                               StreamView stream) {
  send_receive(nullptr, -1, output, peer, count, dtype, stream);
}

void PeerCommunicator::send_receive(const void* input, int to, void* output, int from,
                                    std::size_t count, DType dtype, StreamView stream) {
  if (to >= 0 || from < 0) check_rank(to, size(), "destination");
  if (from >= 0 || to < 0) check_rank(from, size(), "source");
  if ((to == rank()) != (from == rank())) {
    throw Error(Code::InvalidArgument, "a rank that sends to itself must receive from itself");
  }
  check_tensors(to >= 0 ? input : output, from >= 0 ? output : input, dtype);
  if (count == 0) return;
  Exchange exchange = new_exchange(input, output, {});
  const std::uint64_t bytes = count * element_bytes(dtype);
  if (to >= 0) exchange.send[to] = {0, bytes};
  if (from >= 0) exchange.place[from] = {0, bytes};
  // In a pair the other rank takes part; in larger groups only queues leave third ranks out of it.
  const bool pair = size() == 2 && to != rank();
  state_->carry_out(exchange, std::nullopt, bytes, pair ? Algorithm::Auto : Algorithm::Push,
                    stream);
}

void PeerCommunicator::barrier(StreamView stream) {
  state_->run(new_exchange(nullptr, nullptr, {}), DType::UInt8, Algorithm::Packets, stream);
}

void PeerCommunicator::abort() noexcept {
  *reinterpret_cast<volatile std::uint32_t*>(&state_->group.mailbox->abort) = 1;
}

Status PeerCommunicator::status() const {
  const auto* mailbox = reinterpret_cast<const volatile Mailbox*>(state_->group.mailbox);
  const auto code = static_cast<Code>(mailbox->code);
  if (code == Code::Ok) return Status::ok();
  std::atomic_thread_fence(std::memory_order_acquire);
  const int peer = mailbox->peer;
  if (code == Code::Aborted) return Status(code, "the collectives of this group were aborted");
  const std::string who = peer < 0 ? "a peer" : "rank " + std::to_string(peer);
  if (code == Code::Protocol) {
    return Status(code, who + " has sent a payload with a scale that no encoder makes", {}, peer);
  }
  if (code == Code::PeerLost)  // of the group alone: the process may be well
    return Status(Code::Timeout, who + " has given up", {}, peer);
  return Status(
      code,
      who + " did not come within " + std::to_string(state_->settings.timeout.count()) + " ms", {},
      peer);
}

void PeerCommunicator::renew(AllGatherBlobs all_gather) {
  const DeviceGuard guard(state_->device);
  abort();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  state_->map.meet_by(std::move(all_gather));
  state_->map.agree(true);  // nobody writes into anybody's memory any more
  state_->clear();
  std::memset(state_->mailbox.data(), 0, state_->mailbox.bytes());
  state_->map.agree(true);  // and all may
}

void PeerCommunicator::close() {
  const DeviceGuard guard(state_->device);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  state_->map.agree(true);
  state_->map.close();
  state_->closed = true;
}

}  // namespace tersum::gpu
