#include <algorithm>
#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/exchange/slice_job.hpp"

namespace tersum::runtime {
namespace {

/// Adds one rank's payloads of all parts to the sums. Their order is the parts' order.
void add_payloads(const Operation& op, const SliceJob& job, std::span<const std::byte> bytes,
                  int rank, std::span<float> sums) {
  std::size_t at = 0, element = 0;
  for (const auto& part : job.parts) {
    const auto payload = payload_at(bytes, at, rank);
    SliceContext context = part.context;
    context.rank = static_cast<std::uint32_t>(op.group().world(rank));
    try {
      job.compressor->decompress_add(payload, context, 1.0f, sums.subspan(element, part.count));
    } catch (const Error& error) {
      throw Error(Status(
          error.code(), "payload of rank " + std::to_string(rank) + ": " + error.status().message(),
          {}, rank));
    }
    at += payload_stride(payload.size());
    element += part.count;
  }
}

}  // namespace

Task<> sparse_merge_exchange(Operation& op, const SliceJob& job) {
  const Compressor& compressor = *job.compressor;
  const int ranks = op.size(), rank = op.rank();
  const std::size_t count = job.count();
  std::size_t room = 0, longest = 0;
  for (const auto& part : job.parts) {
    room += payload_stride(compressor.max_payload_bytes(part.count));
    longest = std::max(longest, part.count);
  }
  auto inbox = op.scratch(room * static_cast<std::size_t>(ranks));
  const auto slot = [&](int r) { return inbox.subspan(room * static_cast<std::size_t>(r), room); };
  auto floats = float_scratch(op, job.dtype == DType::Float32 ? 0 : longest);
  std::size_t own_bytes = 0;
  auto encode = op.compute(count * 4, [&] {
    for (const auto& part : job.parts) {
      auto payload = slot(rank).subspan(own_bytes, compressor.max_payload_bytes(part.count));
      const std::size_t bytes = compressor.compress(part_as_float(part, job.dtype, floats),
                                                    part.context, part.state, payload);
      const std::size_t stride = payload_stride(bytes);
      if (own_bytes + stride <= room)
        std::memset(payload.data() + bytes, 0, stride - bytes);  // no stray bytes on the wire
      own_bytes += stride;
    }
  });
  co_await encode;
  op.set_stage(Stage::Compressed);
  op.set_stage(Stage::Exchanging);
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(from, 0, write_view(slot(from).data(), 0, room)));
  }
  for (int d = 1; d < ranks; ++d)
    sends.push_back(op.send((rank + d) % ranks, 0, read_view(slot(rank).data(), 0, own_bytes)));

  auto sums = float_scratch(op, count);
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (int r = 0; r < ranks; ++r) {  // rank order; the own payload is decoded like the others
    std::size_t bytes = own_bytes;
    if (r != rank) {
      Transfer& arriving = receives[static_cast<std::size_t>((rank - r + ranks) % ranks - 1)];
      bytes = co_await arriving;
    }
    auto add = op.compute(bytes * 4,
                          [&, r, bytes] { add_payloads(op, job, slot(r).first(bytes), r, sums); });
    co_await add;
  }
  op.set_stage(Stage::Decompressed);
  auto finish = op.compute(count * 8, [&] {
    finish_sum(job.op, ranks, sums);
    std::size_t element = 0;
    for (const auto& part : job.parts) {
      store_result(part, job.dtype, sums.subspan(element, part.count));
      element += part.count;
    }
  });
  co_await finish;
  for (auto& transfer : sends) co_await transfer;
}

}  // namespace tersum::runtime
