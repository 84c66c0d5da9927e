// C interface: communicators, collectives, work.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/c_api.hpp"

namespace tersum::c_api {
namespace {

CallOptions options_of(const tersum_call_options_t* options) {
  CallOptions result;
  if (options == nullptr) return result;
  const tersum_call_options_t defaults = TERSUM_CALL_OPTIONS_INIT;
  const auto given =
      versioned(*options, defaults, offsetof(tersum_call_options_t, stream_ordered), "options");
  result.pre_scale = given.pre_scale;
  result.post_scale = given.post_scale;
  result.timeout = std::chrono::milliseconds(given.timeout_ms);
  result.stream.handle = given.stream;
  result.stream_ordered = given.stream_ordered != 0;
  return result;
}

/// Makes a call that returns a Work: hands the work over, or waits for it.
template <class Call>
int start(tersum_comm_t* comm, const tersum_call_options_t* options, tersum_work_t** work,
          Call&& call) noexcept {
  return guarded([&] {
    auto& communicator = required(comm, "comm").communicator;
    const CallOptions call_options = options_of(options);
    if (work == nullptr) return call(communicator, call_options).wait();
    auto handle = std::make_unique<tersum_work>();  // before the call: afterwards nothing may fail
    handle->work = call(communicator, call_options);
    *work = handle.release();
  });
}

/// One count for each rank.
std::span<const std::size_t> counts_of(const std::size_t* counts, const Communicator& communicator,
                                       const char* name) {
  return {&required(counts, name), static_cast<std::size_t>(communicator.size())};
}

}  // namespace
}  // namespace tersum::c_api

using namespace tersum::c_api;  // NOLINT: the functions below are this file's purpose
using tersum::CallOptions;
using tersum::Communicator;

int tersum_connect(const tersum_config_t* config, tersum_comm_t** comm) {
  return guarded([&] {
    auto& result = required(comm, "comm");
    result = new tersum_comm{Communicator::connect(config != nullptr
                                                       ? tersum::config_from(config->settings)
                                                       : tersum::Config::from_environment())};
  });
}

int tersum_comm_rank(const tersum_comm_t* comm, int* rank) {
  return guarded([&] { required(rank, "rank") = required(comm, "comm").communicator.rank(); });
}

int tersum_comm_size(const tersum_comm_t* comm, int* size) {
  return guarded([&] { required(size, "size") = required(comm, "comm").communicator.size(); });
}

int tersum_comm_world_rank(const tersum_comm_t* comm, int rank, int* world_rank) {
  return guarded([&] {
    required(world_rank, "world_rank") = required(comm, "comm").communicator.world_rank(rank);
  });
}

int tersum_comm_split(tersum_comm_t* comm, int color, int key, tersum_comm_t** group) {
  return guarded([&] {
    auto& result = required(group, "group");
    auto& communicator = required(comm, "comm").communicator;
    auto handle = std::make_unique<tersum_comm>();
    handle->communicator = communicator.split(color, key);
    result = handle->communicator.valid() ? handle.release() : nullptr;
  });
}

int tersum_comm_abort(tersum_comm_t* comm, const char* reason) {
  return guarded([&] { required(comm, "comm").communicator.abort(&required(reason, "reason")); });
}

int tersum_comm_status(const tersum_comm_t* comm) {
  int code = TERSUM_OK;
  const int failed =
      guarded([&] { code = remember(required(comm, "comm").communicator.status()); });
  return failed != TERSUM_OK ? failed : code;
}

int tersum_comm_sent_bytes(const tersum_comm_t* comm, uint64_t* bytes) {
  return guarded(
      [&] { required(bytes, "bytes") = required(comm, "comm").communicator.sent_bytes(); });
}

int tersum_comm_destroy(tersum_comm_t* comm) {
  delete comm;
  return TERSUM_OK;
}

int tersum_all_reduce(tersum_comm_t* comm, const void* input, void* output, size_t count,
                      tersum_dtype_t dtype, tersum_op_t op, const tersum_call_options_t* options,
                      tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.all_reduce(input, output, count, dtype_of(dtype), op_of(op), call);
  });
}

int tersum_reduce_scatter(tersum_comm_t* comm, const void* input, void* output, size_t count,
                          tersum_dtype_t dtype, tersum_op_t op,
                          const tersum_call_options_t* options, tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.reduce_scatter(input, output, count, dtype_of(dtype), op_of(op), call);
  });
}

int tersum_all_gather(tersum_comm_t* comm, const void* input, void* output, size_t count,
                      tersum_dtype_t dtype, const tersum_call_options_t* options,
                      tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.all_gather(input, output, count, dtype_of(dtype), call);
  });
}

int tersum_all_gather_v(tersum_comm_t* comm, const void* input, void* output, const size_t* counts,
                        tersum_dtype_t dtype, const tersum_call_options_t* options,
                        tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.all_gather_v(input, output, counts_of(counts, group, "counts"), dtype_of(dtype),
                              call);
  });
}

int tersum_broadcast(tersum_comm_t* comm, void* data, size_t count, tersum_dtype_t dtype, int root,
                     const tersum_call_options_t* options, tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.broadcast(data, count, dtype_of(dtype), root, call);
  });
}

int tersum_reduce(tersum_comm_t* comm, const void* input, void* output, size_t count,
                  tersum_dtype_t dtype, tersum_op_t op, int root,
                  const tersum_call_options_t* options, tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.reduce(input, output, count, dtype_of(dtype), op_of(op), root, call);
  });
}

int tersum_all_to_all(tersum_comm_t* comm, const void* input, void* output, size_t count,
                      tersum_dtype_t dtype, const tersum_call_options_t* options,
                      tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.all_to_all(input, output, count, dtype_of(dtype), call);
  });
}

int tersum_all_to_all_v(tersum_comm_t* comm, const void* input, const size_t* send_counts,
                        void* output, const size_t* receive_counts, tersum_dtype_t dtype,
                        const tersum_call_options_t* options, tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.all_to_all_v(input, counts_of(send_counts, group, "send_counts"), output,
                              counts_of(receive_counts, group, "receive_counts"), dtype_of(dtype),
                              call);
  });
}

int tersum_send(tersum_comm_t* comm, const void* data, size_t count, tersum_dtype_t dtype, int peer,
                const tersum_call_options_t* options, tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.send(data, count, dtype_of(dtype), peer, call);
  });
}

int tersum_receive(tersum_comm_t* comm, void* data, size_t count, tersum_dtype_t dtype, int peer,
                   const tersum_call_options_t* options, tersum_work_t** work) {
  return start(comm, options, work, [&](Communicator& group, const CallOptions& call) {
    return group.receive(data, count, dtype_of(dtype), peer, call);
  });
}

int tersum_barrier(tersum_comm_t* comm, const tersum_call_options_t* options,
                   tersum_work_t** work) {
  return start(comm, options, work,
               [&](Communicator& group, const CallOptions& call) { return group.barrier(call); });
}

int tersum_work_done(const tersum_work_t* work, int* done) {
  return guarded([&] { required(done, "done") = required(work, "work").work.done() ? 1 : 0; });
}

int tersum_work_wait(const tersum_work_t* work, int64_t timeout_ms, int* done) {
  return guarded([&] {
    const auto& operation = required(work, "work").work;
    if (timeout_ms >= 0) required(done, "done");
    bool ended = true;
    try {
      // A day is as good as any longer time, and does not overflow in nanoseconds.
      constexpr std::int64_t kLongest = 86'400'000;
      if (timeout_ms >= 0)
        ended = operation.wait(std::chrono::milliseconds(std::min(timeout_ms, kLongest)));
      else
        operation.wait();
    } catch (...) {
      ended = operation.done();
      if (done != nullptr) *done = ended ? 1 : 0;
      if (!ended) throw;
      operation.wait();  // its own outcome
    }
    if (done != nullptr) *done = ended ? 1 : 0;
  });
}

int tersum_work_wait_on(const tersum_work_t* work, void* stream) {
  return guarded([&] { required(work, "work").work.wait_on(tersum::Stream{stream}); });
}

int tersum_work_status(const tersum_work_t* work) {
  int code = TERSUM_OK;
  const int failed = guarded([&] { code = remember(required(work, "work").work.status()); });
  return failed != TERSUM_OK ? failed : code;
}

int tersum_work_stage(const tersum_work_t* work, tersum_stage_t* stage) {
  return guarded(
      [&] { required(stage, "stage") = static_cast<int>(required(work, "work").work.stage()); });
}

int tersum_work_free(tersum_work_t* work) {
  delete work;
  return TERSUM_OK;
}
