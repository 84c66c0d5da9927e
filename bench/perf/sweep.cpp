#include "perf/sweep.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "perf/buffers.hpp"
#include "perf/check.hpp"
#include "perf/compressed.hpp"
#include "perf/device.hpp"
#include "perf/nccl.hpp"
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
    call_ = on_device([this](const Shape& shape, const void* input, void* output) {
      start_(shape, input, output).wait();
    });
    if (!options.compare_nccl) return;
    nccl_ = join_nccl(communicator, problem_, options.nccl_library, device_->stream());
    nccl_call_ = on_device(nccl_.start);
  }

  /// Of NCCL, if it is measured, too.
  Peer peer() const { return {nccl_.version, nccl_.library}; }

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

  /// A call whose buffers are on the host, made on their images.
  Call on_device(Call call) {
    return [this, call = std::move(call)](const Shape& shape, const void* input, void* output) {
      device_->upload(DeviceMemory::Part::FirstSlot);
      call(shape, device_->image(input), device_->image(output));
      device_->download(DeviceMemory::Part::FirstSlot);
    };
  }

  Measurement measure(const Shape& shape, std::size_t bytes, bool in_place) {
    Measurement result;
    if (nccl_.start) result.nccl.emplace();
    if (options_.check) {
      result.wrong = check(bytes, shape, in_place, call_);
      if (result.nccl) result.nccl->wrong = check(bytes, shape, in_place, nccl_call_);
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

  /// Wrong elements on all ranks.
  std::int64_t check(std::size_t bytes, const Shape& shape, bool in_place, const Call& call) {
    cut(shape);
    std::int64_t wrong = check_here(bytes, shape, in_place, call);
    communicator_.all_reduce(&wrong, &wrong, 1, DType::Int64).wait();
    return wrong;
  }

  /// The size itself, and a size that is one element less, in buffers that start one element
  /// beyond their alignment.
  std::int64_t check_here(std::size_t bytes, const Shape& shape, bool in_place, const Call& call) {
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
          check_call(problem_, checked, {in_place, shifted}, round_++, inputs_, outputs_, call);
    };
    check_shape(shape, false);
    const std::size_t elements = bytes / element_bytes(options_.dtype);
    if (elements > 1) check_shape(make_shape(problem_, elements - 1), true);
    return wrong;
  }

  void time(const Shape& shape, bool in_place, Measurement& result) {
    const std::size_t element = element_bytes(options_.dtype);
    const auto with_buffers = [&](int number, const auto& use) {
      const auto turn = static_cast<std::size_t>(number);
      std::byte* output = outputs_.slot(turn);
      const std::byte* input = in_place ? output + shape.input_at * element : inputs_.slot(turn);
      if (in_place) output += shape.output_at * element;
      use(input, output);
    };
    fill(shape, in_place);
    const std::uint64_t before = communicator_.sent_bytes();
    int calls = options_.warmup + options_.iterations;
    if (device_) {
      const auto enqueue = [&](const auto& start) {
        return [&](int number) {
          with_buffers(number, [&](const void* input, void* output) {
            start(shape, device_->image(input), device_->image(output));
          });
        };
      };
      std::vector<DeviceMemory::Enqueue> contenders{enqueue(start_)};
      if (nccl_.start) contenders.push_back(enqueue(nccl_.start));
      const auto timings = device_->time(communicator_, options_.warmup, options_.iterations,
                                         options_.graph, contenders);
      calls = device_->calls(options_.warmup, options_.iterations);
      result.timing = timings.front();
      if (result.nccl) result.nccl->timing = timings.back();
    } else {
      result.timing =
          time_calls(communicator_, options_.warmup, options_.iterations, [&](int number) {
            with_buffers(number,
                         [&](const void* input, void* output) { call_(shape, input, output); });
          });
    }
    const std::uint64_t after = communicator_.sent_bytes();
    result.wire_bytes = options_.graph ? std::numeric_limits<double>::quiet_NaN()  // not counted
                                       : static_cast<double>(after - before) / calls;
    communicator_
        .all_reduce(&result.wire_bytes, &result.wire_bytes, 1, DType::Float64, ReduceOp::Average)
        .wait();
  }

  /// Numbers, not what is left of checks: sums of arbitrary bits may be slow.
  void fill(const Shape& shape, bool in_place) {
    const Values values(options_.dtype, options_.op, problem_.ranks, 0);
    const auto calls = static_cast<std::size_t>(options_.warmup + options_.iterations);
    const std::size_t slots = std::min(outputs_.slots(), calls);
    for (std::size_t slot = 0; slot < slots; ++slot) {
      values.fill(inputs_.slot(slot), problem_.rank, 0, shape.input_count);
      values.fill(outputs_.slot(slot), problem_.rank, 0,
                  in_place ? shape.whole_count : shape.output_count);
    }
    if (device_) device_->upload();
  }

  Communicator& communicator_;
  const Options& options_;
  bool one_host_;
  Problem problem_;
  Call call_;
  BufferRing inputs_, outputs_;
  std::unique_ptr<DeviceMemory> device_;
  Start start_;  ///< on the device
  Nccl nccl_;    ///< there, too; its start is empty if it is not measured
  Call nccl_call_;
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
  if (!options.compressor.empty()) {
    report.header();
    for (const std::size_t bytes : options.sizes()) {
      const std::size_t elements = bytes / element_bytes(options.dtype);
      if (elements > 0) {
        report.add(elements, measure_compressed(communicator, options, elements));
      }
    }
    return report.finish();
  }
  Sweep sweep(communicator, options, environment);
  report.header(sweep.peer());
  for (const std::size_t bytes : options.sizes()) report.add(sweep.measure(bytes));
  return report.finish();
}

}  // namespace tersum::perf
