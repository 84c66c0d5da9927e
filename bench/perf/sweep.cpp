#include "perf/sweep.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "perf/buffers.hpp"
#include "perf/check.hpp"
#include "perf/compressed.hpp"
#include "perf/device.hpp"
#include "perf/problem.hpp"
#include "perf/report.hpp"
#include "perf/timing.hpp"

namespace tersum::perf {
namespace {

constexpr int kBarrierChecks = 20;

class Sweep {
 public:
  Sweep(Communicator& communicator, const Options& options, const Environment& environment)
      : communicator_(communicator),
        options_(options),
        one_host_(environment.one_host()),
        problem_{options.collective, options.dtype,       options.op,
                 options.root,       communicator.rank(), communicator.size()},
        call_(make_call(communicator, problem_)),
        inputs_(largest_bytes(options)),
        outputs_(largest_bytes(options)) {
    if (!options.device) return;
    device_ = DeviceMemory::make(communicator.rank(), inputs_, outputs_);
    start_ = make_start(communicator, problem_, device_->stream());
    call_ = [this](const Shape& shape, const void* input, void* output) {
      device_->upload();
      start_(shape, device_->image(input), device_->image(output)).wait();
      device_->download();
    };
  }

  Row measure(std::size_t bytes) {
    const Shape shape = make_shape(problem_, bytes / element_bytes(options_.dtype));
    Row row;
    row.size_bytes = shape.size_bytes;
    row.count = shape.count;
    if (options_.out_of_place) row.out_of_place = measure(shape, bytes, false);
    if (options_.in_place) row.in_place = measure(shape, bytes, true);
    return row;
  }

 private:
  static std::size_t largest_bytes(const Options& options) { return options.sizes().back(); }

  Measurement measure(const Shape& shape, std::size_t bytes, bool in_place) {
    Measurement result;
    cut(shape);
    if (options_.check) {
      std::int64_t wrong = check(bytes, shape, in_place);
      communicator_.all_reduce(&wrong, &wrong, 1, DType::Int64).wait();
      result.wrong = wrong;
    }
    cut(shape);
    time(shape, in_place, result);
    return result;
  }

  void cut(const Shape& shape) {
    const std::size_t element = element_bytes(options_.dtype);
    inputs_.set_size(shape.input_count * element);
    outputs_.set_size(std::max(shape.output_count, shape.whole_count) * element);
  }

  /// The size itself, and a size that is one element less, in buffers that start one element
  /// beyond their alignment.
  std::int64_t check(std::size_t bytes, const Shape& shape, bool in_place) {
    std::int64_t wrong = 0;
    if (problem_.traits->collective == Collective::Barrier) {
      for (int i = 0; one_host_ && i < kBarrierChecks; ++i) {
        wrong += check_barrier(communicator_, round_++);
      }
      return wrong;
    }
    const auto check_shape = [&](const Shape& checked, bool shifted) {
      cut(checked);
      wrong +=
          check_call(problem_, checked, {in_place, shifted}, round_++, inputs_, outputs_, call_);
    };
    check_shape(shape, false);
    const std::size_t elements = bytes / element_bytes(options_.dtype);
    if (elements > 1) check_shape(make_shape(problem_, elements - 1), true);
    return wrong;
  }

  void time(const Shape& shape, bool in_place, Measurement& result) {
    const std::size_t element = element_bytes(options_.dtype);
    const auto call = [&](int number) {
      const auto turn = static_cast<std::size_t>(number);
      std::byte* output = outputs_.slot(turn);
      const std::byte* input = in_place ? output + shape.input_at * element : inputs_.slot(turn);
      if (in_place) output += shape.output_at * element;
      if (device_)
        start_(shape, device_->image(input), device_->image(output));
      else
        call_(shape, input, output);
    };
    // Numbers, not what is left of checks: sums of arbitrary bits may be slow.
    const Values values(options_.dtype, options_.op, problem_.ranks, 0);
    const int calls = options_.warmup + options_.iterations;
    const std::size_t slots = std::min(outputs_.slots(), static_cast<std::size_t>(calls));
    for (std::size_t slot = 0; slot < slots; ++slot) {
      values.fill(inputs_.slot(slot), problem_.rank, 0, shape.input_count);
      values.fill(outputs_.slot(slot), problem_.rank, 0,
                  in_place ? shape.whole_count : shape.output_count);
    }
    const std::uint64_t before = communicator_.sent_bytes();
    if (device_) {
      device_->upload();
      result.timing =
          device_->time(communicator_, options_.warmup, options_.iterations, options_.graph, call);
    } else {
      result.timing = time_calls(communicator_, options_.warmup, options_.iterations, call);
    }
    const std::uint64_t after = communicator_.sent_bytes();
    result.wire_bytes = static_cast<double>(after - before) / calls;
    communicator_
        .all_reduce(&result.wire_bytes, &result.wire_bytes, 1, DType::Float64, ReduceOp::Average)
        .wait();
  }

  Communicator& communicator_;
  const Options& options_;
  bool one_host_;
  Problem problem_;
  Call call_;
  BufferRing inputs_, outputs_;
  std::unique_ptr<DeviceMemory> device_;
  Start start_;  ///< on the device
  std::uint64_t round_ = 0;
};

void check_ranks(const Communicator& communicator, const Options& options) {
  const int ranks = communicator.size();
  const auto refuse = [](const std::string& what) { throw UsageError(what); };
  if (options.ranks > 0 && options.ranks != ranks) {
    refuse("-n " + std::to_string(options.ranks) + ": the launcher has started " +
           std::to_string(ranks) + " already; leave -n out");
  }
  if (options.root >= ranks) {
    refuse("--root " + std::to_string(options.root) + ": ranks go up to " +
           std::to_string(ranks - 1));
  }
  if (options.collective->collective == Collective::SendReceive && ranks < 2) {
    refuse("send_recv needs at least 2 ranks: use -n or a launcher");
  }
}

}  // namespace

bool run_sweep(Communicator& communicator, const Options& options) {
  check_ranks(communicator, options);
  const Environment environment = gather_environment(communicator);
  Report report(options, environment, communicator.rank() == 0);
  report.header();
  if (!options.compressor.empty()) {
    for (const std::size_t bytes : options.sizes()) {
      const std::size_t elements = bytes / element_bytes(options.dtype);
      if (elements > 0) {
        report.add(elements, measure_compressed(communicator, options, elements));
      }
    }
    return report.finish();
  }
  Sweep sweep(communicator, options, environment);
  for (const std::size_t bytes : options.sizes()) report.add(sweep.measure(bytes));
  return report.finish();
}

}  // namespace tersum::perf
