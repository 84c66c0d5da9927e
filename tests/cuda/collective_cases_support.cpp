#include <algorithm>
#include <stdexcept>

#include "cuda/collective_cases.hpp"
#include "cuda/error.hpp"

namespace tersum::gpu {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr std::size_t kMargin = 64;  // bytes around the output that must stay as they are

std::size_t input_runs(Collective kind, int size) {
  const bool parts = kind == Collective::ReduceScatter || kind == Collective::AllToAll;
  return parts ? static_cast<std::size_t>(size) : 1;
}

std::size_t output_runs(Collective kind, int size) {
  const bool parts = kind == Collective::AllGather || kind == Collective::AllToAll;
  return parts ? static_cast<std::size_t>(size) : 1;
}

HostTensor part_of(const HostTensor& tensor, std::size_t part, std::size_t bytes) {
  const auto begin = tensor.begin() + static_cast<std::ptrdiff_t>(part * bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

}  // namespace

std::string CollectiveCase::to_string() const {
  static constexpr const char* kNames[kCollectiveCount] = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "shift"};
  return std::string(kNames[static_cast<int>(kind)]) + " " + std::to_string(count) + " " +
         std::string(tersum::to_string(dtype)) + " " + std::string(tersum::to_string(op)) + " " +
         std::string(gpu::to_string(algorithm)) + (in_place ? " in place" : "") + " shifted by " +
         std::to_string(shift) + " root " + std::to_string(root);
}

CollectiveRank::CollectiveRank(const RankRole& role, int devices, const PeerSettings& settings)
    : role_(role),
      guard_(std::make_unique<DeviceGuard>(role.rank % devices)),
      stream_(std::make_unique<Stream>()),
      communicator_(
          std::make_unique<PeerCommunicator>(role.rank, role.size, role.all_gather, settings)),
      input_(kCapacity),
      output_(kCapacity),
      host_(kCapacity) {}

void CollectiveRank::submit(const CollectiveCase& test, const std::byte* input, std::byte* output) {
  PeerCommunicator& c = *communicator_;
  const StreamView s = stream();
  switch (test.kind) {
    case Collective::AllReduce:
      return c.all_reduce(input, output, test.count, test.dtype, test.op, s, test.scales,
                          test.algorithm);
    case Collective::ReduceScatter:
      return c.reduce_scatter(input, output, test.count, test.dtype, test.op, s, test.scales,
                              test.algorithm);
    case Collective::AllGather:
      return c.all_gather(input, output, test.count, test.dtype, s, test.algorithm);
    case Collective::Broadcast:
      return c.broadcast(input, output, test.count, test.dtype, test.root, s, test.algorithm);
    case Collective::Reduce:
      return c.reduce(input, output, test.count, test.dtype, test.op, test.root, s, test.scales,
                      test.algorithm);
    case Collective::AllToAll:
      return c.all_to_all(input, output, test.count, test.dtype, s, test.algorithm);
    case Collective::Shift:
      return c.send_receive(input, (rank() + 1) % size(), output, (rank() + size() - 1) % size(),
                            test.count, test.dtype, s);
  }
}

HostTensor CollectiveRank::expected(const CollectiveCase& test, std::uint64_t seed) const {
  const std::size_t run = test.count * element_bytes(test.dtype);
  const std::size_t in_count = test.count * input_runs(test.kind, size());
  std::vector<HostTensor> values;
  for (int r = 0; r < size(); ++r) values.push_back(make_values(test.dtype, in_count, r, seed));
  const auto own = static_cast<std::size_t>(rank());
  HostTensor result;
  switch (test.kind) {
    case Collective::ReduceScatter:
      for (HostTensor& tensor : values) tensor = part_of(tensor, own, run);
      [[fallthrough]];
    case Collective::AllReduce:
      return reduce_on_host(values, test.dtype, test.op, test.scales.pre, test.scales.post);
    case Collective::Reduce:
      if (rank() != test.root) return HostTensor(run, kPoison);
      return reduce_on_host(values, test.dtype, test.op, test.scales.pre, test.scales.post);
    case Collective::Broadcast:
      return values[static_cast<std::size_t>(test.root)];
    case Collective::Shift:
      return values[(own + values.size() - 1) % values.size()];
    case Collective::AllGather:
      for (const HostTensor& tensor : values) {
        result.insert(result.end(), tensor.begin(), tensor.end());
      }
      return result;
    case Collective::AllToAll:
      for (const HostTensor& tensor : values) {
        const HostTensor part = part_of(tensor, own, run);
        result.insert(result.end(), part.begin(), part.end());
      }
      return result;
  }
  return result;
}

void CollectiveRank::copy(void* to, const void* from, std::size_t bytes) {
  gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream().get()), "copy");
  stream().synchronize();
}

/// In place: where NCCL's convention has the input within the output or the other way round.
CollectiveRank::Place CollectiveRank::place_of(const CollectiveCase& test,
                                               std::size_t offset) const {
  const std::size_t element = element_bytes(test.dtype);
  const std::size_t own = test.count * element * static_cast<std::size_t>(rank());
  offset += kMargin + test.shift * element;
  Place place{input_.data() + offset, output_.data() + offset};
  if (!test.in_place) return place;
  place.output = test.kind == Collective::ReduceScatter ? place.input + own : place.input;
  if (test.kind == Collective::AllGather) place.input = place.output + own;
  return place;
}

void CollectiveRank::prepare(const CollectiveCase& test, const Place& place, std::uint64_t seed) {
  const std::size_t run = test.count * element_bytes(test.dtype);
  const std::size_t out_bytes = run * output_runs(test.kind, size());
  std::fill_n(host_.data(), out_bytes + 2 * kMargin, kPoison);
  copy(place.output - kMargin, host_.data(), out_bytes + 2 * kMargin);
  const HostTensor values =
      make_values(test.dtype, test.count * input_runs(test.kind, size()), rank(), seed);
  std::copy(values.begin(), values.end(), host_.data());
  copy(place.input, host_.data(), values.size());
}

void CollectiveRank::compare(const CollectiveCase& test, const Place& place, std::uint64_t seed) {
  const std::size_t element = element_bytes(test.dtype);
  const std::size_t out_bytes = test.count * element * output_runs(test.kind, size());
  copy(host_.data(), place.output - kMargin, out_bytes + 2 * kMargin);
  const bool reads_back = test.kind != Collective::Reduce || rank() == test.root || !test.in_place;
  const HostTensor wanted = expected(test, seed);
  for (std::size_t i = 0; i < wanted.size() && reads_back; ++i) {
    if (host_.data()[kMargin + i] == wanted[i]) continue;
    throw std::runtime_error("rank " + std::to_string(rank()) + ", " + test.to_string() +
                             ": element " + std::to_string(i / element) + " is wrong");
  }
  for (std::size_t i = 0; i < kMargin && !test.in_place; ++i) {
    if (host_.data()[i] != kPoison || host_.data()[kMargin + out_bytes + i] != kPoison) {
      throw std::runtime_error(test.to_string() + ": wrote beside its output");
    }
  }
}

void CollectiveRank::check_all(std::span<const CollectiveCase> tests, std::uint64_t seed) {
  const std::size_t room = kCapacity / tests.size() / 256 * 256;
  std::vector<Place> places;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    places.push_back(place_of(tests[i], i * room));
    prepare(tests[i], places[i], seed + i);
  }
  std::string names;
  for (std::size_t i = 0; i < tests.size(); ++i) {
    submit(tests[i], places[i].input, places[i].output);
    names += (i > 0 ? ", " : "") + tests[i].to_string();
  }
  const cudaError_t ended = cudaStreamSynchronize(stream().get());
  gpu::check(ended, names.c_str());
  const Status status = communicator_->status();
  if (!status.is_ok()) throw std::runtime_error(names + ": " + status.to_string());
  for (std::size_t i = 0; i < tests.size(); ++i) compare(tests[i], places[i], seed + i);
}

void check_everything(CollectiveRank& rank, Algorithm algorithm, Algorithm all_reduce_algorithm) {
  std::uint64_t seed = 1;
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        CollectiveCase test;
        test.kind = static_cast<Collective>(kind);
        test.dtype = static_cast<DType>(dtype);
        test.op = static_cast<ReduceOp>(op);
        test.algorithm = test.kind == Collective::AllReduce ? all_reduce_algorithm : algorithm;
        const bool reduces = test.kind == Collective::AllReduce ||
                             test.kind == Collective::ReduceScatter ||
                             test.kind == Collective::Reduce;
        if (!reduces && op != 0) continue;
        if (reduces && test.dtype == DType::Bool && test.op == ReduceOp::Average) continue;
        if (reduces && is_floating(test.dtype) && op % 2 == 0) test.scales = {0.3, 1.7};
        for (const std::size_t count : {1ul, 7ul, 4096ul, 12345ul}) {
          test.count = count;
          test.root = static_cast<int>(seed) % rank.size();
          test.shift = seed % 3;
          test.in_place = seed % 5 < 2 && test.kind != Collective::Shift;
          rank.check(test, ++seed);
        }
      }
    }
  }
}

}  // namespace tersum::gpu
