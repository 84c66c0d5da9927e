// Random calls of a communicator, several of them under way at once, against values computed apart
// from it.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/draw.hpp"
#include "src/numbers.hpp"
#include "src/support.hpp"

namespace tersum::test {

/// Where a rank's tensors are: one after the other, between bytes that must stay as they are.
class TensorMemory {
 public:
  using Bytes = std::vector<std::byte>;
  static constexpr std::size_t kCapacity = std::size_t{48} << 20;

  virtual ~TensorMemory() = default;
  virtual void write(std::size_t offset, const Bytes& bytes) = 0;
  virtual Bytes read(std::size_t offset, std::size_t bytes) = 0;
  virtual std::byte* at(std::size_t offset) = 0;
};

/// Draws calls and makes them on one rank. All ranks do this with the same draw.
class RandomCalls {
 public:
  using Bytes = TensorMemory::Bytes;
  using Counts = std::vector<std::size_t>;

  /// Rounds of calls that are under way at once.
  static void make_rounds(Communicator& communicator, Draw& draw, TensorMemory& memory,
                          const CallOptions& options) {
    RandomCalls calls(communicator, draw, memory, options);
    for (int round = 0; round < 12 && !testing::Test::HasFatalFailure(); ++round)
      calls.make(1 + draw.below(6));
  }

 private:
  RandomCalls(Communicator& communicator, Draw& draw, TensorMemory& memory, CallOptions options)
      : communicator_(communicator), draw_(draw), memory_(memory), options_(options) {}

  void make(std::size_t calls) {
    for (std::size_t i = 0; i < calls; ++i) make_one();
    bool good = true;
    for (const Work& work : works_) {  // all end before anything is given up
      const auto ended = succeeds(work);
      EXPECT_TRUE(ended);
      good = good && ended;
    }
    ASSERT_TRUE(good);
    for (const Expected& result : expected_)
      ASSERT_TRUE(
          same_bytes(memory_.read(result.offset - kMargin, result.bytes.size()), result.bytes))
          << result.call << ", rank " << communicator_.rank() << " of " << communicator_.size();
    works_.clear();
    expected_.clear();
    end_ = kMargin;
    has_large_ = false;
  }

  static constexpr std::size_t kMargin = 64;
  static constexpr std::byte kPoison{0xa5};

  struct Expected {
    std::string call;
    std::size_t offset;
    Bytes bytes;  ///< with margins
  };

  int size() const { return communicator_.size(); }
  std::size_t own() const { return static_cast<std::size_t>(communicator_.rank()); }
  Bytes values(int rank, std::size_t count) const { return pattern(dtype_, op_, rank, count); }
  std::size_t bytes_of(std::size_t count) const { return count * element_bytes(dtype_); }
  Bytes part(const Bytes& all, std::size_t first, std::size_t count) const {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(bytes_of(first));
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes_of(count))};
  }
  static std::size_t sum(const Counts& counts, std::size_t first) {
    std::size_t total = 0;
    for (std::size_t i = 0; i < first; ++i) total += counts[i];
    return total;
  }

  /// Memory for a tensor that holds `contents`, at any address that suits its type.
  std::size_t place(const Bytes& contents) {
    end_ = (end_ + 63) / 64 * 64 + shift_ * element_bytes(dtype_);
    const std::size_t offset = end_;
    Bytes framed(contents.size() + 2 * kMargin, kPoison);
    std::copy(contents.begin(), contents.end(), framed.begin() + kMargin);
    memory_.write(offset - kMargin, framed);
    end_ += contents.size() + 2 * kMargin;
    return offset;
  }
  void expect(std::size_t offset, const Bytes& contents) {
    Bytes framed(contents.size() + 2 * kMargin, kPoison);
    std::copy(contents.begin(), contents.end(), framed.begin() + kMargin);
    expected_.push_back({name_, offset, framed});
  }
  std::byte* at(std::size_t offset) { return memory_.at(offset); }
  static std::size_t shared(std::size_t from, std::size_t to, std::size_t count) {
    return (from * 5 + to * 3) % 4 * count;
  }

  void make_one() {
    dtype_ = kAllDTypes[draw_.below(kAllDTypes.size())];
    do {
      op_ = kAllOps[draw_.below(kAllOps.size())];
    } while (!has_meaning(dtype_, op_));
    shift_ = draw_.below(5);
    const auto ranks = static_cast<std::size_t>(size());
    static constexpr const char* kNames[] = {"all_reduce",   "reduce_scatter", "all_gather",
                                             "all_gather_v", "broadcast",      "reduce",
                                             "all_to_all",   "all_to_all_v",   "neighbours"};
    const std::size_t kind = draw_.below(std::size(kNames));
    const bool one_run = kind == 0 || kind == 4 || kind == 5 || kind == 8;
    const bool large =
        draw_.one_in(6) && !std::exchange(has_large_, true);  // there is room for one
    const std::size_t bytes = (large ? std::size_t{4} << 20 : 400'000) / (one_run ? 1 : ranks);
    count_ = draw_.one_in(9) ? 0 : draw_.size_up_to(bytes / element_bytes(dtype_));
    root_ = static_cast<int>(draw_.below(ranks));
    in_place_ = draw_.one_in(2);
    call_ = options_;
    if (is_floating(dtype_) && op_ != ReduceOp::Product && draw_.one_in(2)) {
      call_.pre_scale = 0.5;
      call_.post_scale = 3;
    }
    name_ = std::string(kNames[kind]) + " " + std::to_string(count_) + " " +
            std::string(to_string(dtype_)) + " " + std::string(to_string(op_)) + " root " +
            std::to_string(root_) + (in_place_ ? " in place" : "");
    if (kind == 0 || kind == 1 || kind == 5) return reduce(kind);
    call_.pre_scale = call_.post_scale = 1;
    if (kind == 2 || kind == 3) return gather(kind == 3);
    if (kind == 4) return broadcast();
    if (kind == 8) return neighbours();
    exchange(kind == 7);
  }

  void reduce(std::size_t kind) {
    const std::size_t all = kind == 1 ? count_ * static_cast<std::size_t>(size()) : count_;
    std::vector<Bytes> inputs;
    for (int r = 0; r < size(); ++r) inputs.push_back(values(r, all));
    Bytes result = reduced(dtype_, op_, inputs, all, call_.pre_scale, call_.post_scale);
    const std::size_t input = place(inputs[own()]);
    if (kind == 1) {
      result = part(result, own() * count_, count_);
      const std::size_t output =
          in_place_ ? input + bytes_of(own() * count_) : place(Bytes(result.size(), kPoison));
      works_.push_back(
          communicator_.reduce_scatter(at(input), at(output), count_, dtype_, op_, call_));
      if (!in_place_) return expect(output, result);
      std::copy(result.begin(), result.end(),
                inputs[own()].begin() + static_cast<std::ptrdiff_t>(bytes_of(own() * count_)));
      return expect(input, inputs[own()]);
    }
    const std::size_t output = in_place_ ? input : place(Bytes(result.size(), kPoison));
    works_.push_back(
        kind == 0 ? communicator_.all_reduce(at(input), at(output), count_, dtype_, op_, call_)
                  : communicator_.reduce(at(input), at(output), count_, dtype_, op_, root_, call_));
    if (kind == 0 || root_ == communicator_.rank()) expect(output, result);
  }

  void gather(bool uneven) {
    Counts counts(static_cast<std::size_t>(size()), count_);
    for (std::size_t r = 0; uneven && r < counts.size(); ++r) counts[r] = shared(r, 1, count_);
    Bytes all;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const Bytes theirs = values(static_cast<int>(r), counts[r]);
      all.insert(all.end(), theirs.begin(), theirs.end());
    }
    const Bytes mine = values(communicator_.rank(), counts[own()]);
    Bytes before(all.size(), kPoison);
    const std::size_t first = bytes_of(sum(counts, own()));
    if (in_place_)
      std::copy(mine.begin(), mine.end(), before.begin() + static_cast<std::ptrdiff_t>(first));
    const std::size_t output = place(before);
    const std::size_t input = in_place_ ? output + first : place(mine);
    works_.push_back(uneven
                         ? communicator_.all_gather_v(at(input), at(output), counts, dtype_, call_)
                         : communicator_.all_gather(at(input), at(output), count_, dtype_, call_));
    expect(output, all);
  }

  void broadcast() {
    const std::size_t data = place(values(communicator_.rank(), count_));
    works_.push_back(communicator_.broadcast(at(data), count_, dtype_, root_, call_));
    expect(data, values(root_, count_));
  }

  void exchange(bool uneven) {
    const auto ranks = static_cast<std::size_t>(size());
    const auto count = [&](std::size_t from, std::size_t to) {
      return uneven ? shared(from, to, count_) : count_;
    };
    Counts sends, receives;
    Bytes wanted;
    for (std::size_t r = 0; r < ranks; ++r) {
      sends.push_back(count(own(), r));
      receives.push_back(count(r, own()));
      Counts theirs;
      for (std::size_t to = 0; to < ranks; ++to) theirs.push_back(count(r, to));
      const Bytes sent = values(static_cast<int>(r), sum(theirs, ranks));
      const Bytes mine = part(sent, sum(theirs, own()), receives[r]);
      wanted.insert(wanted.end(), mine.begin(), mine.end());
    }
    const std::size_t input = place(values(communicator_.rank(), sum(sends, ranks)));
    const std::size_t output = place(Bytes(wanted.size(), kPoison));
    works_.push_back(
        uneven ? communicator_.all_to_all_v(at(input), sends, at(output), receives, dtype_, call_)
               : communicator_.all_to_all(at(input), at(output), count_, dtype_, call_));
    expect(output, wanted);
  }

  /// Each rank to the next one; in a stream even ranks send first.
  void neighbours() {
    const int next = (communicator_.rank() + 1) % size();
    const int last = (communicator_.rank() + size() - 1) % size();
    if (size() % 2 != 0) return broadcast();
    const std::size_t input = place(values(communicator_.rank(), count_));
    const std::size_t output = place(Bytes(bytes_of(count_), kPoison));
    const bool sends_first = own() % 2 == 0;
    const auto send = [&] {
      works_.push_back(communicator_.send(at(input), count_, dtype_, next, call_));
    };
    if (sends_first) send();
    works_.push_back(communicator_.receive(at(output), count_, dtype_, last, call_));
    if (!sends_first) send();
    expect(output, values(last, count_));
  }

  Communicator& communicator_;
  Draw& draw_;
  TensorMemory& memory_;
  const CallOptions options_;
  CallOptions call_;
  DType dtype_ = DType::Float32;
  ReduceOp op_ = ReduceOp::Sum;
  std::size_t count_ = 0, shift_ = 0, end_ = kMargin;
  int root_ = 0;
  bool in_place_ = false, has_large_ = false;
  std::string name_;
  std::vector<Work> works_;
  std::vector<Expected> expected_;
};

}  // namespace tersum::test
