// Communicator: a fixed group of ranks and the collectives between them.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "tersum/config.hpp"
#include "tersum/types.hpp"
#include "tersum/work.hpp"

namespace tersum {

class CommunicatorState;

/// Settings of a single call.
struct CallOptions {
  double pre_scale =
      1.0;  ///< every input element is multiplied by it first (floating dtypes only unless 1)
  double post_scale =
      1.0;  ///< every result element is multiplied by it last (floating dtypes only unless 1)
  std::chrono::milliseconds timeout{0};  ///< deadline of this call; 0: TERSUM_TIMEOUT_MS
  /// For tensors in device memory: the call is put into this stream, in the order of what is there
  /// already; without elements there is nothing to put. Host memory takes none.
  Stream stream{};
  /// Device memory of ranks of one host: nobody will ask the Work, which is done at once, so that
  /// the call costs little more than its launch. What comes of it is the stream's order, and
  /// status() if it fails; the communicator may go when the stream has done it. As in a graph.
  /// An address that has once been device memory is taken to be so still. Elsewhere it changes
  /// nothing.
  bool stream_ordered = false;
};

/// A fixed group of ranks. A cheap shared handle. All calls are asynchronous: they return a Work at
/// once, and the caller keeps the buffers alive and untouched until it is done. A failed call
/// leaves inputs unchanged; so does a failed in-place call. Any thread may call, but the order of
/// calls on one communicator must be the same on all ranks, so threads that share one must agree on
/// it. Bad arguments throw Error InvalidArgument at once; ranks that disagree (other collective,
/// count, dtype, operator, root, scale) all get Mismatch with both views, and the communicator
/// stays usable. PeerLost and Timeout end the communicator: what is pending and what comes later
/// fails with the first cause. In place means input == output. Pointers may be null when their
/// count is 0.
///
/// Device memory: all calls take tensors in device memory, both or none, and put their work into
/// the stream: the caller is not blocked, its Work is done when the stream has done it. The
/// thread's current device is the rank's GPU. The first such call must be a collective; it sets up
/// the way, blocks for that, and cannot be captured. A failed call leaves outputs undefined, the
/// CUDA context usable. barrier() is of that kind if it is given a stream; so is the all_to_all_v()
/// of a rank that neither sends nor receives if it is given a stream or a device's memory. On all
/// ranks or none. (Null is no stream here; cudaStreamLegacy names the default one.)
/// - Ranks of one host whose GPUs can map each other's memory (up to 8): calls are kernels, and may
///   be captured into a CUDA graph, which must not be launched when the communicator is gone. Ranks
///   that disagree where one of them makes a call it has not made before (other count, dtype,
///   operator, root or scale) get Mismatch, which ends the communicator; another difference shows
///   as a Timeout (TERSUM_TIMEOUT_MS). The Work of such a first call ends when all ranks have
///   agreed, too. Each all_to_all_v() is such a call.
///   Calls on several communicators at once, of 32 MiB or more, come in one order on all ranks:
///   their copies share queues of the GPU.
/// - All others: calls go through the hosts' memory, cannot be captured, and are checked as those
///   on host memory are. Between hosts with several ranks each a difference ends the communicator.
///   Where several ranks of one process share a GPU, what waits for another rank may hold up what
///   that one needs, until the Timeout. Let CUDA_DEVICE_MAX_CONNECTIONS be more than there are
///   streams, and call cudaFree() and copy from or to pageable memory when nothing is under way;
///   or give each rank a process.
class Communicator {
 public:
  /// Joins the job described by `config` and the launcher's variables: blocks until all ranks have
  /// joined, at most config.join_timeout. Several calls in one process are several members of jobs.
  static Communicator connect(const Config& config = Config::from_environment());

  Communicator() = default;
  explicit Communicator(std::shared_ptr<CommunicatorState> state) : state_(std::move(state)) {}
  bool valid() const noexcept { return state_ != nullptr; }

  int rank() const;
  int size() const;
  /// Rank in the world communicator of this group's `rank`.
  int world_rank(int rank) const;
  const Config& config() const;

  /// output[count] = op over ranks of input[count]. In place or not. All ranks get bit-identical
  /// results.
  Work all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                  ReduceOp op = ReduceOp::Sum, const CallOptions& options = {});

  /// output[count] = part `rank()` of the reduction of input[count * size()]. In place: output is
  /// that part of input.
  Work reduce_scatter(const void* input, void* output, std::size_t count, DType dtype,
                      ReduceOp op = ReduceOp::Sum, const CallOptions& options = {});

  /// output[count * size()] = input[count] of all ranks, in rank order. In place: input is part
  /// `rank()` of output.
  Work all_gather(const void* input, void* output, std::size_t count, DType dtype,
                  const CallOptions& options = {});

  /// As all_gather with counts[r] elements from rank r (the same `counts` on all ranks).
  Work all_gather_v(const void* input, void* output, std::span<const std::size_t> counts,
                    DType dtype, const CallOptions& options = {});

  /// data[count] of `root` to all, in place.
  Work broadcast(void* data, std::size_t count, DType dtype, int root,
                 const CallOptions& options = {});

  /// output[count] on `root` = op over ranks of input[count]; other ranks' output is not used and
  /// may be null.
  Work reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
              int root, const CallOptions& options = {});

  /// output part r = part rank() of rank r's input; parts are [count]. Not in place.
  Work all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                  const CallOptions& options = {});

  /// As all_to_all with send_counts[r] elements to and receive_counts[r] elements from rank r,
  /// packed in rank order.
  Work all_to_all_v(const void* input, std::span<const std::size_t> send_counts, void* output,
                    std::span<const std::size_t> receive_counts, DType dtype,
                    const CallOptions& options = {});

  /// Point to point: the n-th send to a peer meets its n-th receive from here; counts and dtypes
  /// must agree.
  Work send(const void* data, std::size_t count, DType dtype, int peer,
            const CallOptions& options = {});
  Work receive(void* data, std::size_t count, DType dtype, int peer,
               const CallOptions& options = {});

  /// Done when all ranks have called it. With a stream: what is in it later starts when the streams
  /// of all ranks have come here.
  Work barrier(const CallOptions& options = {});

  /// A new group of the ranks that gave the same `color`, ordered by (key, rank). Collective over
  /// this group and blocking. color < 0: this rank joins no group and gets an invalid handle.
  Communicator split(int color, int key = 0);

  /// Ends everything pending on this group, on all ranks, with Aborted and `reason`. Later calls
  /// fail the same way.
  void abort(const std::string& reason);

  /// Ok, or the error that ended this communicator.
  Status status() const;

  /// Bytes that this rank has handed to the transport for other ranks since the start, headers not
  /// counted. Of calls over peer memory what they have to send at least, one that is captured
  /// included; of replays nothing.
  std::uint64_t sent_bytes() const;

  const std::shared_ptr<CommunicatorState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<CommunicatorState> state_;
};

}  // namespace tersum
