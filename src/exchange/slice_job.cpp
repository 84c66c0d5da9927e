#include "src/exchange/slice_job.hpp"

#include <cstring>

#include "compressors/convert.hpp"

namespace tersum::runtime {

Task<> exchange_slice(Operation& op, const SliceJob& job) {
  if (job.dense) return linear_exchange(op, job);
  switch (job.compressor->traits().aggregation) {
    case Aggregation::Linear:
      return linear_exchange(op, job);
    case Aggregation::Recompress:
      return recompress_exchange(op, job);
    case Aggregation::SparseMerge:
      return sparse_merge_exchange(op, job);
  }
  throw Error(Code::Internal, "unknown aggregation class");
}

std::span<const float> part_as_float(const SlicePart& part, DType dtype, std::span<float> room) {
  if (dtype == DType::Float32) return {reinterpret_cast<const float*>(part.data), part.count};
  compressors::to_float(dtype, part.data, room.data(), part.count);
  return room.first(part.count);
}

void store_result(const SlicePart& part, DType dtype, std::span<const float> values) {
  if (part.count > 0) compressors::from_float(values.data(), dtype, part.result, part.count);
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

void finish_sum(ReduceOp op, int ranks, std::span<float> values) noexcept {
  if (op != ReduceOp::Average) return;
  const float divisor = static_cast<float>(ranks);
  for (float& value : values) value /= divisor;
}

}  // namespace tersum::runtime
