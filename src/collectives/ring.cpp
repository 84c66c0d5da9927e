// Ring all-reduce (Patarasuk & Yuan 2009): n-1 steps of reduce-scatter, n-1 of all-gather, between
// neighbours.
#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {

Task<> ring_all_reduce(Operation& op, Reduction call) {
  const Arithmetic arithmetic(call.dtype, call.op);
  const int ranks = op.size(), rank = op.rank();
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const std::size_t element = element_bytes(call.dtype);
  const Partition chunks{call.count, ranks};
  auto values = op.scratch(call.count * element);
  auto inbox = op.scratch(chunks.size(0) * element);
  auto load = op.compute(values.size(), [&] {
    arithmetic.load(values.data(), call.input, call.count, call.pre_scale);
  });
  co_await load;
  const auto offset = [&](int chunk) { return chunks.offset(chunk) * element; };
  const auto bytes = [&](int chunk) { return chunks.size(chunk) * element; };

  for (int step = 0; step < ranks - 1; ++step) {  // chunk c ends up complete on rank c - 1
    const int out = (rank + ranks - step) % ranks, in = (out + ranks - 1) % ranks;
    const auto hop = static_cast<std::uint64_t>(step);
    Transfer receiving = op.receive(previous, hop, write_view(inbox.data(), 0, bytes(in)));
    Transfer sending = op.send(next, hop, read_view(values.data(), offset(out), bytes(out)));
    co_await receiving;
    auto sum = op.compute(bytes(in), [&, in] {
      arithmetic.merge(values.data() + offset(in), inbox.data(), chunks.size(in), true);
    });
    co_await sum;
    co_await sending;
  }
  const int own = next;
  auto finish = op.compute(bytes(own), [&] {
    arithmetic.store(values.data() + offset(own), values.data() + offset(own), chunks.size(own),
                     ranks, call.post_scale);
  });
  co_await finish;
  for (int step = 0; step < ranks - 1; ++step) {
    const int out = (own + ranks - step) % ranks, in = (out + ranks - 1) % ranks;
    const auto hop = static_cast<std::uint64_t>(ranks + step);
    Transfer receiving =
        op.receive(previous, hop, write_view(values.data(), offset(in), bytes(in)));
    Transfer sending = op.send(next, hop, read_view(values.data(), offset(out), bytes(out)));
    co_await receiving;
    co_await sending;
  }
  auto copy = op.compute(values.size(), [&] {
    if (!values.empty()) std::memcpy(call.output, values.data(), values.size());
  });
  co_await copy;
}

}  // namespace tersum::runtime
