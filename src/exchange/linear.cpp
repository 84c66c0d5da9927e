#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/exchange/slice_job.hpp"

namespace tersum::runtime {
namespace {

/// Elements as they are: one part travels in place, several are gathered first.
Task<> dense_exchange(Operation& op, const SliceJob& job) {
  const std::size_t element = element_bytes(job.dtype), count = job.count();
  const bool single = job.parts.size() == 1;
  std::byte* gathered = single ? nullptr : op.scratch(count * element).data();
  std::byte* summed = single ? job.parts[0].result : op.scratch(count * element).data();
  if (!single) {
    auto gather = op.compute(count * element, [&] {
      std::byte* to = gathered;
      for (const auto& part : job.parts) {
        if (part.count > 0) std::memcpy(to, part.data, part.count * element);
        to += part.count * element;
      }
    });
    co_await gather;
  }
  op.set_stage(Stage::Exchanging);
  Reduction call;
  call.input = single ? job.parts[0].data : gathered;
  call.output = summed;
  call.count = count;
  call.dtype = job.dtype;
  call.op = job.op;
  Task<> sum = all_reduce(op, call, Algorithm::Direct);
  co_await sum;
  op.set_stage(Stage::Decompressed);
  if (single) co_return;
  auto scatter = op.compute(count * element, [&] {
    const std::byte* from = summed;
    for (const auto& part : job.parts) {
      if (part.count > 0) std::memcpy(part.result, from, part.count * element);
      from += part.count * element;
    }
  });
  co_await scatter;
}

}  // namespace

Task<> linear_exchange(Operation& op, const SliceJob& job) {
  if (job.dense) {
    Task<> task = dense_exchange(op, job);
    co_await task;
    co_return;
  }
  // Headers stay at home: each rank has its own, and the operation's signature has compared what
  // they say.
  const Compressor& compressor = *job.compressor;
  const DType body_type = compressor.traits().payload_dtype;
  constexpr std::size_t kHeader = sizeof(PayloadHeader);
  std::size_t longest = 0, room = 0;
  for (const auto& part : job.parts) {
    longest = std::max(longest, part.count);
    room += payload_stride(compressor.max_payload_bytes(part.count));
  }
  auto floats = float_scratch(op, longest);
  auto payloads = op.scratch(room);
  auto bodies = op.scratch(room), summed = op.scratch(room);
  std::vector<std::size_t> sizes(job.parts.size());
  std::size_t body_bytes = 0;
  auto encode = op.compute(longest * 4 * job.parts.size(), [&] {
    std::size_t at = 0;
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      const auto& part = job.parts[i];
      auto payload = payloads.subspan(at, compressor.max_payload_bytes(part.count));
      sizes[i] = compressor.compress(part_as_float(part, job.dtype, floats), part.context,
                                     part.state, payload);
      std::memcpy(bodies.data() + body_bytes, payload.data() + kHeader, sizes[i] - kHeader);
      body_bytes += sizes[i] - kHeader;
      at += payload_stride(sizes[i]);
    }
  });
  co_await encode;
  op.set_stage(Stage::Compressed);
  op.set_stage(Stage::Exchanging);
  Reduction call;
  call.input = bodies.data();
  call.output = summed.data();
  call.count = body_bytes / element_bytes(body_type);
  call.dtype = body_type;
  call.op = job.op;
  Task<> sum = all_reduce(op, call, Algorithm::Direct);
  co_await sum;
  op.set_stage(Stage::Decompressed);
  auto decode = op.compute(longest * 4 * job.parts.size(), [&] {
    std::size_t at = 0, body = 0;
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      const auto& part = job.parts[i];
      std::memcpy(payloads.data() + at + kHeader, summed.data() + body, sizes[i] - kHeader);
      compressor.decompress(payloads.subspan(at, sizes[i]), part.context, floats.first(part.count));
      store_result(part, job.dtype, floats.first(part.count));
      body += sizes[i] - kHeader;
      at += payload_stride(sizes[i]);
    }
  });
  co_await decode;
}

}  // namespace tersum::runtime
