#include "src/exchange/slice_job.hpp"

#include "src/device/device_gradients.hpp"
#include "src/exchange/slice_codec.hpp"

namespace tersum::runtime {

Task<> exchange_slice(Operation& op, const SliceJob& job) {
  if (job.device != nullptr) {
    Task<> task = job.device->exchange(op, job);
    co_await task;
  } else {
    const std::unique_ptr<SliceCodec> codec = make_host_codec(op, job);
    Task<> task = exchange_messages(op, job, *codec);
    co_await task;
  }
}

Task<> exchange_messages(Operation& op, const SliceJob& job, SliceCodec& codec) {
  if (job.dense) return dense_exchange(op, job, codec);
  switch (job.compressor->traits().aggregation) {
    case Aggregation::Linear:
      return linear_exchange(op, job, codec);
    case Aggregation::Recompress:
      return recompress_exchange(op, job, codec);
    case Aggregation::SparseMerge:
      return sparse_merge_exchange(op, job, codec);
  }
  throw Error(Code::Internal, "unknown aggregation class");
}

}  // namespace tersum::runtime
