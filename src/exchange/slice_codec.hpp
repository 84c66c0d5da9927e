// What stands between a slice's elements and its messages, where the elements are: host or device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/exchange/slice_job.hpp"

namespace tersum::runtime {

/// A run of whole blocks of one part (the part's last block may be short).
struct Piece {
  const SlicePart* part;
  std::size_t begin;  ///< element inside the part
  std::size_t count;
  std::size_t at;  ///< element inside the slice
};

/// Which pieces each rank owns: the slice's blocks, in order, shared out evenly. Equal on all
/// ranks.
std::vector<std::vector<Piece>> share_out(const SliceJob& job, int ranks);
/// The same in blocks of `block` elements; 0: parts are not cut.
std::vector<std::vector<Piece>> share_out(const SliceJob& job, int ranks, std::size_t block);

/// Every part as one piece.
std::vector<Piece> whole_parts(const SliceJob& job);

/// Payloads in messages lie one after the other, each at a multiple of 16 bytes, as kernels
/// want them.
constexpr std::size_t payload_stride(std::size_t bytes) noexcept {
  return (bytes + 15) / 16 * 16;
}

/// Bytes of a message that holds a payload of each piece, at most.
std::size_t room_for(const Compressor& compressor, std::span<const Piece> pieces);

/// The same of their bodies, without headers and gaps.
std::size_t bodies_of(const Compressor& compressor, std::span<const Piece> pieces);

/// A message's bytes, where messages lie one after the other.
constexpr std::size_t message_stride(std::size_t bytes) noexcept {
  return (bytes + 63) / 64 * 64;
}

/// The strides of all messages that exchange_messages() asks its codec for, as `rank` of `ranks`.
std::size_t message_bytes(const SliceJob& job, int ranks, int rank);

/// Keeps to message_bytes(): where each message lies, one after the other.
class MessagePlan {
 public:
  MessagePlan(const SliceJob& job, int ranks, int rank)
      : slice_(job.slice), bytes_(message_bytes(job, ranks, rank)) {}

  std::size_t bytes() const noexcept { return bytes_; }
  /// Offset of the next message. Error Internal if it is not one of the plan.
  std::size_t place(std::size_t message);

 private:
  std::uint32_t slice_;
  std::size_t bytes_;
  std::size_t used_ = 0;
};

/// Who encodes `piece`, and from where on.
SliceContext context_of(const Piece& piece, std::uint32_t encoder);

/// The payload that starts at `offset` in `bytes`: its extent is in its header, which is checked
/// against what is there. Error Protocol names `rank`, the sender.
std::span<const std::byte> payload_at(std::span<const std::byte> bytes, std::size_t offset,
                                      int rank);

/// A message of payloads that has arrived.
struct PayloadMessage {
  std::span<const std::byte> bytes;
  int sender = 0;             ///< group rank
  std::uint32_t encoder = 0;  ///< SliceContext::rank of who encoded it
};

/// One slice's way between memory and messages. It works on the slice's elements as fp32 `values`
/// of its own; messages are host memory. Steps follow each other; a step is over when it has been
/// awaited. Nothing but the parts' results is written.
class SliceCodec {
 public:
  virtual ~SliceCodec() = default;

  /// Host memory for a message, valid as long as the operation. message_bytes() knows all of them.
  virtual std::span<std::byte> message(std::size_t bytes) = 0;

  // Dense slices: elements travel as they are.
  /// The elements of all parts, one part after the other.
  virtual Task<std::span<const std::byte>> gather() = 0;
  /// Where their sums go; then scatter() brings those to the results.
  virtual std::span<std::byte> sums() = 0;
  virtual Task<> scatter() = 0;

  // Linear: bodies of payloads, without their headers, one after the other.
  virtual Task<std::span<const std::byte>> encode_bodies() = 0;
  /// Decodes `bodies`, laid out alike, into the results.
  virtual Task<> decode_bodies(std::span<const std::byte> bodies) = 0;

  // Payloads of pieces.
  /// Encodes the gradients' elements of `pieces`, of which this codec sees each element once.
  /// Returns the bytes written to `out`.
  virtual Task<std::size_t> encode(std::span<const Piece> pieces, std::span<std::byte> out) = 0;
  /// Values of all elements are 0.
  virtual Task<> clear() = 0;
  /// Decodes payloads of `compressor` to values, or adds them there.
  virtual Task<> decode(const Compressor& compressor, std::span<const Piece> pieces,
                        const PayloadMessage& message, bool add) = 0;
  /// Values become averages if that is asked for, and are encoded by the job's reducer.
  virtual Task<std::size_t> encode_sums(std::span<const Piece> pieces,
                                        std::span<std::byte> out) = 0;
  /// Writes the values to the parts' results; before that they become averages if `sums`.
  virtual Task<> store(bool sums) = 0;
};

/// For slices in host memory; computes on the engine's pool. `job` outlives it.
std::unique_ptr<SliceCodec> make_host_codec(Operation& op, const SliceJob& job);

}  // namespace tersum::runtime
