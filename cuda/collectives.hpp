// Collectives between the GPUs of one host, as kernels on peer-mapped memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "cuda/peer_map.hpp"
#include "cuda/stream.hpp"
#include "tersum/error.hpp"
#include "tersum/types.hpp"

namespace tersum::gpu {

struct Group;

/// How a collective is carried out.
enum class Algorithm {
  Auto,            ///< by the table in PeerSettings
  Packets,         ///< flags inside the data, everything to everybody: small
  PacketsTwoShot,  ///< the same in two steps (all-reduce); of one or two ranks: Packets
  Lines,           ///< 120 bytes with one flag, everything to everybody: middle, NVLink only
  LinesTwoShot,    ///< the same in two steps (all-reduce); of one or two ranks: Lines
  Push,            ///< chunks with a flag each, through queues, everything to everybody
  PushTwoShot,     ///< the same as a reduce-scatter and an all-gather (all-reduce)
  CopyEngines,     ///< copy engines carry, kernels add; between two ranks: large
};

std::string_view to_string(Algorithm algorithm) noexcept;

/// Up to which size (bytes of the tensor in an all-reduce, of one rank's run otherwise) which
/// algorithm is chosen. Must be the same on all ranks.
struct AlgorithmTable {
  std::size_t packets_bytes = 0;           ///< up to here Packets
  std::size_t packets_two_shot_bytes = 0;  ///< all-reduce: then up to here PacketsTwoShot
  /// Then up to here Lines; an all-reduce of more than two ranks: LinesTwoShot, up to a share (one
  /// rank's part) of this size. 0 where the GPUs have no NVLink.
  std::size_t lines_bytes = 0;
  std::size_t push_bytes = 0;          ///< all-reduce: then up to here Push
  std::size_t copy_engines_bytes = 0;  ///< two ranks: from here on CopyEngines; 0: never

  /// Measured on two H200 with NVLink; for more ranks estimated.
  static AlgorithmTable for_ranks(int size) noexcept;

  friend bool operator==(const AlgorithmTable&, const AlgorithmTable&) = default;
};

/// Must be the same on all ranks.
struct PeerSettings {
  /// How long kernels wait for a peer before they end with Timeout; 0: for ever.
  std::chrono::milliseconds timeout{30'000};
  /// Zero: for_ranks(size).
  AlgorithmTable table;
  /// Lets each kernel be set up while the one before it runs (programmatic dependent launch), not
  /// only small ones. Only for groups whose GPUs run no other group of peers at the same time:
  /// kernels that wait for their turn can keep another group's from starting.
  bool early_launch = false;
  int cell_blocks = 0;  ///< most blocks of packets and lines, at most 128; 0: 128
  int push_blocks = 0;  ///< most blocks of a push, at most 128; 0: 128
  /// Chunks that a block sends ahead of their flags, 1 to 4.
  int push_lead = 1;
  std::size_t slot_bytes = 16384;  ///< of a slot in a queue, a multiple of 4096
  int slots = 4;                   ///< of a queue
  /// Takes staging memory and a stream for Algorithm::CopyEngines, in groups of two ranks;
  /// without, Auto does not choose it.
  bool copy_engines = true;
  /// What copy engines carry at once, at most, a multiple of 1 MiB.
  std::size_t staging_bytes = std::size_t{512} << 20;
  /// What of it a kernel carries, at most, while they start: no more than an eighth, in 64 KiB.
  std::size_t head_bytes = std::size_t{3} << 20;
  /// Of that kernel, which also takes what has arrived, at most 128. They wait for each other: all
  /// of them must fit on the GPU beside what else runs there.
  int staging_blocks = 64;
};

/// Scales of a reduction: result = post * op(pre * value of each rank). Floating types only.
struct Scales {
  double pre = 1.0;
  double post = 1.0;
};

/// One rank's end of a group of 1 to 8 GPUs of one host that can map each other's memory. Ranks are
/// processes, or threads of one process (for the set-up only: later one thread may serve several).
///
/// Every call puts kernels into `stream` (and copies beside it) and returns: no call blocks the
/// host, allocates, or goes through a thread. Tensors are read and written where they are, whatever
/// allocated them: nothing is copied to make it visible to peers, only communication memory of the
/// group is mapped. All calls can be captured into CUDA graphs and replayed any number of times,
/// mixed with calls outside; each rank must run the same sequence of operations.
///
/// Operations of one communicator follow each other: use one stream, or order streams by events.
/// Several communicators are independent and may run at once, as long as their kernels together fit
/// on the GPU: up to 128 blocks of 512 threads each, 64 with copy engines; of small operations (up
/// to some 400 KiB) the next one waits on the GPU beside the one that runs. Where several of them
/// use copy engines at once their calls come in one order on all ranks: copies share queues.
///
/// Tensors: `count` elements of `dtype`, aligned for their type; 16-byte alignment is fastest.
/// Values are accumulated in rank order, in fp32 (fp64 for fp64, integers exactly), so all ranks
/// get the same bits. Input and output overlap in place, as told below, or not at all. Count 0 does
/// nothing. Arguments must agree on all ranks; a mismatch ends in wrong values or a Timeout.
///
/// Errors of arguments are thrown. A failure on the device (peer silent for `timeout`, or one that
/// has failed itself, or abort())
/// ends all kernels of this communicator at once, leaves the outputs undefined, and shows in
/// status(); the CUDA context and everything else stay usable. A failed communicator stays failed
/// until renew().
class PeerCommunicator {
 public:
  /// Collective. For the device that is current now. `all_gather` is kept until the end.
  PeerCommunicator(int rank, int size, AllGatherBlobs all_gather, PeerSettings settings = {});
  /// Waits for its own work, then frees. Does not wait for the others: call close() on all ranks
  /// before, or their kernels may meet memory that is gone.
  ~PeerCommunicator();
  PeerCommunicator(const PeerCommunicator&) = delete;
  PeerCommunicator& operator=(const PeerCommunicator&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  int device() const noexcept;

  /// output[count] = op over ranks of input[count]. In place: output == input.
  void all_reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                  StreamView stream, Scales scales = {}, Algorithm algorithm = Algorithm::Auto);
  /// output[count] = op over ranks of input[rank * count ...]; input has size() * count elements.
  /// In place: output == input + rank * count.
  void reduce_scatter(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
                      StreamView stream, Scales scales = {}, Algorithm algorithm = Algorithm::Auto);
  /// output[rank * count ...] = input[count] of each rank. In place: input == output + rank *
  /// count.
  void all_gather(const void* input, void* output, std::size_t count, DType dtype,
                  StreamView stream, Algorithm algorithm = Algorithm::Auto);
  /// output[count] = input[count] of `root`; input is not read elsewhere.
  void broadcast(const void* input, void* output, std::size_t count, DType dtype, int root,
                 StreamView stream, Algorithm algorithm = Algorithm::Auto);
  /// On `root`: output[count] = op over ranks of input[count]; output is not written elsewhere.
  void reduce(const void* input, void* output, std::size_t count, DType dtype, ReduceOp op,
              int root, StreamView stream, Scales scales = {},
              Algorithm algorithm = Algorithm::Auto);
  /// output[s * count ...] = input[rank * count ...] of each rank s. In place: output == input.
  void all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                  StreamView stream, Algorithm algorithm = Algorithm::Auto);
  /// As all_gather() with counts[r] elements from rank r, one after the other; the same `counts` on
  /// all ranks. In place: input is this rank's part of output.
  void all_gather_v(const void* input, void* output, std::span<const std::size_t> counts,
                    DType dtype, StreamView stream, Algorithm algorithm = Algorithm::Auto);
  /// As all_to_all() with send_counts[r] elements to and receive_counts[r] elements from rank r,
  /// packed in rank order. A rank knows its own counts only. Not in place.
  void all_to_all_v(const void* input, std::span<const std::size_t> send_counts, void* output,
                    std::span<const std::size_t> receive_counts, DType dtype, StreamView stream);
  /// input[count] goes to `peer`, which calls receive() with the same count and dtype. Other ranks
  /// need not take part. Two ranks that send to each other at once both call send_receive().
  void send(const void* input, std::size_t count, DType dtype, int peer, StreamView stream);
  void receive(void* output, std::size_t count, DType dtype, int peer, StreamView stream);
  /// Both at once: input[count] to `to`, output[count] from `from`.
  void send_receive(const void* input, int to, void* output, int from, std::size_t count,
                    DType dtype, StreamView stream);
  /// Work after it in `stream` starts when all ranks have come here.
  void barrier(StreamView stream);

  /// Which algorithm an all-reduce of these bytes takes.
  Algorithm all_reduce_algorithm(std::size_t bytes) const noexcept;

  /// Ends all kernels of this communicator on this rank, now and later, with Aborted. Any thread.
  void abort() noexcept;
  /// The first failure, or Ok: Aborted, or Timeout with the rank that was waited for, or that had
  /// given up. Does not block; any thread.
  Status status() const;

  /// Collective: waits until all work of this communicator is done on all ranks and ends the
  /// mappings. Nothing may be submitted afterwards. Not to be called after a failure.
  void close();

  /// Collective: this becomes a new communicator of the same ranks, as if it had just been made,
  /// also after a failure. Ends what still runs in it, and waits for all that runs on the device.
  /// Graphs that hold its kernels must not be launched any more.
  void renew(AllGatherBlobs all_gather);

  /// What other kernels of this room need to take part in the group's failures.
  const Group& group() const noexcept;

  /// Device bytes that the group's communication memory takes here.
  std::size_t memory_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersum::gpu
