#include "src/exchange/slice_job.hpp"

#include "src/device/device_exchange.hpp"
#include "src/exchange/slice_codec.hpp"

namespace tersum::runtime {

Task<> exchange_slice(Operation& op, const SliceJob& job) {
  const std::unique_ptr<SliceCodec> codec =
      job.device != nullptr ? job.device->codec(op, job) : make_host_codec(op, job);
  const auto exchange = [&] {
    if (job.dense) return dense_exchange(op, job, *codec);
    switch (job.compressor->traits().aggregation) {
      case Aggregation::Linear:
        return linear_exchange(op, job, *codec);
      case Aggregation::Recompress:
        return recompress_exchange(op, job, *codec);
      case Aggregation::SparseMerge:
        return sparse_merge_exchange(op, job, *codec);
    }
    throw Error(Code::Internal, "unknown aggregation class");
  };
  Task<> task = exchange();
  co_await task;
}

}  // namespace tersum::runtime
