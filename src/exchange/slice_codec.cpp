#include "src/exchange/slice_codec.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {

std::vector<std::vector<Piece>> share_out(const SliceJob& job, int ranks) {
  return share_out(job, ranks, std::max<std::size_t>(1, job.compressor->traits().block_count));
}

std::vector<std::vector<Piece>> share_out(const SliceJob& job, int ranks, std::size_t block) {
  if (block == 0) block = std::max<std::size_t>(1, job.count());
  std::size_t total = 0;
  for (const auto& part : job.parts) total += (part.count + block - 1) / block;
  const Partition shares{total, ranks};
  std::vector<std::vector<Piece>> owned(static_cast<std::size_t>(ranks));
  std::size_t first = 0, element = 0;  // first block of the part; its first element in the slice
  for (const auto& part : job.parts) {
    const std::size_t blocks = (part.count + block - 1) / block;
    for (int r = 0; r < ranks; ++r) {
      const std::size_t begin = std::max(first, shares.offset(r)),
                        end = std::min(first + blocks, shares.offset(r + 1));
      if (begin >= end) continue;
      const std::size_t from = (begin - first) * block,
                        to = std::min(part.count, (end - first) * block);
      owned[static_cast<std::size_t>(r)].push_back({&part, from, to - from, element + from});
    }
    first += blocks;
    element += part.count;
  }
  return owned;
}

std::vector<Piece> whole_parts(const SliceJob& job) {
  std::vector<Piece> pieces;
  std::size_t element = 0;
  for (const auto& part : job.parts) {
    pieces.push_back({&part, 0, part.count, element});
    element += part.count;
  }
  return pieces;
}

std::size_t bodies_of(const Compressor& compressor, std::span<const Piece> pieces) {
  std::size_t bytes = 0;
  for (const auto& piece : pieces)
    bytes += compressor.max_payload_bytes(piece.count) - sizeof(PayloadHeader);
  return bytes;
}

std::size_t room_for(const Compressor& compressor, std::span<const Piece> pieces) {
  std::size_t bytes = 0;
  for (const auto& piece : pieces)
    bytes += payload_stride(compressor.max_payload_bytes(piece.count));
  return bytes;
}

std::size_t message_bytes(const SliceJob& job, int ranks, int rank) {
  const auto of_all = static_cast<std::size_t>(ranks);
  if (job.dense) {
    const std::size_t gathered =
        job.partial ? Arithmetic(job.dtype, job.op).accumulator_bytes() : element_bytes(job.dtype);
    return message_stride(job.count() * gathered) +
           message_stride(job.count() * element_bytes(job.dtype));
  }
  const auto parts = whole_parts(job);
  switch (job.compressor->traits().aggregation) {
    case Aggregation::Linear:
      return 2 * message_stride(bodies_of(*job.compressor, parts));
    case Aggregation::SparseMerge:
      return message_stride(of_all * room_for(*job.compressor, parts));
    case Aggregation::Recompress:
      break;
  }
  const auto owned = share_out(job, ranks);
  const auto& own = owned[static_cast<std::size_t>(rank)];
  std::size_t bytes = message_stride(of_all * room_for(*job.compressor, own));
  for (const auto& pieces : owned)
    bytes += message_stride(room_for(*job.compressor, pieces)) +
             message_stride(room_for(*job.reducer, pieces));
  return bytes;
}

std::size_t MessagePlan::place(std::size_t message) {
  const std::size_t stride = message_stride(message);
  if (stride > bytes_ - used_)
    throw Error(Code::Internal, "slice " + std::to_string(slice_) + ": a message of " +
                                    std::to_string(message) + " bytes is not in its plan of " +
                                    std::to_string(bytes_));
  return std::exchange(used_, used_ + stride);
}

SliceContext context_of(const Piece& piece, std::uint32_t encoder) {
  SliceContext context = piece.part->context;
  context.offset += piece.begin;
  context.rank = encoder;
  return context;
}

std::span<const std::byte> payload_at(std::span<const std::byte> bytes, std::size_t offset,
                                      int rank) {
  const auto bad = [&](const std::string& what) {
    return Error(
        Status(Code::Protocol, "payload of rank " + std::to_string(rank) + ": " + what, {}, rank));
  };
  if (offset > bytes.size() || bytes.size() - offset < sizeof(PayloadHeader))
    throw bad("header is cut off");
  PayloadHeader header;
  std::memcpy(&header, bytes.data() + offset, sizeof(header));
  if (header.body_bytes > bytes.size() - offset - sizeof(header))
    throw bad("body is longer than the message");
  return bytes.subspan(offset, sizeof(header) + header.body_bytes);
}

}  // namespace tersum::runtime
