#include "src/collectives/collectives.hpp"
#include "src/exchange/slice_codec.hpp"

namespace tersum::runtime {

Task<> dense_exchange(Operation& op, const SliceJob& job, SliceCodec& codec) {
  Task<std::span<const std::byte>> gathering = codec.gather();
  const std::span<const std::byte> elements = co_await gathering;
  op.set_stage(Stage::Exchanging);
  Reduction call;
  call.input = elements.data();
  call.output = codec.sums().data();
  call.count = job.count();
  call.dtype = job.dtype;
  call.op = job.op;
  Task<> sum = job.partial ? all_reduce_partial(op, call, op.size())
                           : all_reduce(op, call, Algorithm::Direct);
  co_await sum;
  op.set_stage(Stage::Decompressed);
  Task<> scatter = codec.scatter();
  co_await scatter;
}

Task<> linear_exchange(Operation& op, const SliceJob& job, SliceCodec& codec) {
  // Headers stay at home: each rank has its own, and the operation's signature has compared what
  // they say.
  Task<std::span<const std::byte>> encoding = codec.encode_bodies();
  const std::span<const std::byte> bodies = co_await encoding;
  op.set_stage(Stage::Compressed);
  op.set_stage(Stage::Exchanging);
  const auto summed = codec.message(bodies.size());
  Reduction call;
  call.input = bodies.data();
  call.output = summed.data();
  call.dtype = job.compressor->traits().payload_dtype;
  call.count = bodies.size() / element_bytes(call.dtype);
  call.op = job.op;
  Task<> sum = all_reduce(op, call, Algorithm::Direct);
  co_await sum;
  op.set_stage(Stage::Decompressed);
  Task<> decode = codec.decode_bodies(summed);
  co_await decode;
}

}  // namespace tersum::runtime
