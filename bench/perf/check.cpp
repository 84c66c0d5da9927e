#include "perf/check.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace tersum::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// Wrong elements of one buffer of `count` elements: the segments of the result (moved by
/// `output_at`), then what is left of the input (at input_at), then poison.
class BufferCheck {
 public:
  BufferCheck(const Problem& problem, const Values& values, const std::byte* data)
      : values_(values), data_(data), element_(element_bytes(problem.dtype)) {}

  void result(const Shape& shape, std::size_t output_at) {
    for (Segment segment : shape.result) {
      segment.at += output_at;
      wrong_ += values_.wrong(data_ + segment.at * element_, segment);
      covered_.push_back({segment.at, segment.count});
    }
  }
  void input(int rank, std::size_t at, std::size_t count) {
    const std::size_t end = at + count;
    gaps(at, end, [&](std::size_t begin, std::size_t length) {
      wrong_ += values_.wrong(data_ + begin * element_, {begin, length, rank, begin - at});
    });
    covered_.push_back({at, count});
  }
  void poison(std::size_t count) {
    gaps(0, count, [&](std::size_t begin, std::size_t length) {
      wrong_ += static_cast<std::int64_t>(not_poison(data_ + begin * element_, length * element_));
    });
  }
  std::int64_t wrong() const noexcept { return wrong_; }

 private:
  struct Range {
    std::size_t at, count;
  };

  /// Calls function(begin, length) for what of [begin, end) nothing has covered yet.
  template <class Function>
  void gaps(std::size_t begin, std::size_t end, Function function) {
    std::sort(covered_.begin(), covered_.end(), [](Range a, Range b) { return a.at < b.at; });
    for (const Range& range : covered_) {
      if (range.at > begin) function(begin, std::min(range.at, end) - begin);
      begin = std::max(begin, range.at + range.count);
      if (begin >= end) return;
    }
    if (begin < end) function(begin, end - begin);
  }

  const Values& values_;
  const std::byte* data_;
  std::size_t element_;
  std::int64_t wrong_ = 0;
  std::vector<Range> covered_;
};

std::int64_t check_in_place(const Problem& problem, const Shape& shape, std::size_t shift,
                            const Values& values, BufferRing& buffers, const Call& call) {
  const std::size_t element = element_bytes(problem.dtype);
  GuardedBuffer whole(buffers, shape.whole_count * element, shift);
  std::byte* input = whole.data() + shape.input_at * element;
  values.fill(input, problem.rank, 0, shape.input_count);
  call(shape, input, whole.data() + shape.output_at * element);
  BufferCheck check(problem, values, whole.data());
  check.result(shape, shape.output_at);
  check.input(problem.rank, shape.input_at, shape.input_count);
  check.poison(shape.whole_count);
  return check.wrong() + static_cast<std::int64_t>(whole.broken_guards());
}

std::int64_t check_out_of_place(const Problem& problem, const Shape& shape, std::size_t shift,
                                const Values& values, BufferRing& inputs, BufferRing& outputs,
                                const Call& call) {
  const std::size_t element = element_bytes(problem.dtype);
  GuardedBuffer input(inputs, shape.input_count * element, shift);
  GuardedBuffer output(outputs, shape.output_count * element, shift);
  values.fill(input.data(), problem.rank, 0, shape.input_count);
  call(shape, input.data(), output.data());
  BufferCheck input_check(problem, values, input.data());
  input_check.input(problem.rank, 0, shape.input_count);
  BufferCheck output_check(problem, values, output.data());
  output_check.result(shape, 0);
  output_check.poison(shape.output_count);
  return input_check.wrong() + output_check.wrong() +
         static_cast<std::int64_t>(input.broken_guards() + output.broken_guards());
}

}  // namespace

std::int64_t check_call(const Problem& problem, const Shape& shape, const CheckMode& mode,
                        std::uint64_t round, BufferRing& inputs, BufferRing& outputs,
                        const Call& call) {
  const Values values(problem.dtype, problem.op, problem.ranks, round);
  const std::size_t shift = mode.shifted ? element_bytes(problem.dtype) : 0;
  return mode.in_place ? check_in_place(problem, shape, shift, values, outputs, call)
                       : check_out_of_place(problem, shape, shift, values, inputs, outputs, call);
}

std::int64_t check_barrier(Communicator& communicator, std::uint64_t round) {
  const int late = static_cast<int>(round % static_cast<std::uint64_t>(communicator.size()));
  const auto start = Clock::now();
  while (communicator.rank() == late && Clock::now() - start < std::chrono::microseconds(500)) {
  }
  std::int64_t entered = Clock::now().time_since_epoch().count();
  communicator.barrier().wait();
  const std::int64_t left = Clock::now().time_since_epoch().count();
  communicator.all_reduce(&entered, &entered, 1, DType::Int64, ReduceOp::Max).wait();
  return left < entered ? 1 : 0;
}

}  // namespace tersum::perf
