#include "tersum/gradient_exchange.hpp"

#include <sys/sysinfo.h>

#include <limits>

#include "src/exchange/exchange_state.hpp"
#include "src/rethrow.hpp"

namespace tersum {
namespace {

constexpr std::size_t kMostElements = std::size_t{1} << 48;

/// Memory and swap space of this machine.
std::uint64_t machine_bytes() noexcept {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return std::numeric_limits<std::uint64_t>::max();
  return (std::uint64_t{info.totalram} + info.totalswap) * info.mem_unit;
}

/// Every gradient's result is staged in memory of its kind: what no memory can hold is refused
/// before time is spent on its plan.
void check_sizes(const std::vector<Gradient>& gradients) {
  const std::uint64_t memory = machine_bytes();
  std::uint64_t total = 0;
  for (const Gradient& gradient : gradients) {
    if (gradient.memory != MemoryType::Host) continue;  // its device will say
    if (gradient.count > kMostElements)
      throw Error(Code::InvalidArgument, "gradient " + gradient.key + " has " +
                                             std::to_string(gradient.count) +
                                             " elements: beyond any memory");
    const std::uint64_t bytes = gradient.count * element_bytes(gradient.dtype);
    if (bytes > memory - total)
      throw Error(Code::OutOfMemory, "gradient " + gradient.key + " has " + std::to_string(bytes) +
                                         " bytes, those before it " + std::to_string(total) +
                                         "; this machine has " + std::to_string(memory) +
                                         " bytes of memory and swap space");
    total += bytes;
  }
}

}  // namespace

GradientExchange::GradientExchange(Communicator communicator, std::vector<Gradient> gradients,
                                   const ExchangeOptions& options) try {
  if (!communicator.valid())
    throw Error(Code::InvalidState, "a gradient exchange needs a connected communicator");
  check_sizes(gradients);
  auto state = std::make_shared<ExchangeState>(communicator, std::move(gradients), options);
  state->agree(std::move(communicator));
  // Slices in flight hold the state too, so the end of the last handle must end them.
  ExchangeState* const shared = state.get();
  state_ = std::shared_ptr<ExchangeState>(
      shared, [owner = std::move(state)](ExchangeState*) { owner->close(); });
} catch (...) {
  rethrow_as_error("a gradient exchange cannot be made");
}

Work GradientExchange::submit(std::string_view key, void* data, Stream stream) try {
  return state_->submit(state_->index_of(key), data, stream);
} catch (...) {
  rethrow_as_error("submit");
}

Work GradientExchange::submit(std::size_t index, void* data, Stream stream) try {
  return state_->submit(index, data, stream);
} catch (...) {
  rethrow_as_error("submit");
}

void GradientExchange::wait(std::string_view key) {
  state_->wait(state_->index_of(key));
}
void GradientExchange::wait(std::size_t index) {
  state_->wait(index);
}
void GradientExchange::wait_all() {
  state_->wait_all();
}
void GradientExchange::commit() {
  state_->commit();
}
void GradientExchange::rollback() {
  state_->rollback();
}
std::vector<std::byte> GradientExchange::save() const try { return state_->save(); } catch (...) {
  rethrow_as_error("save");
}
void GradientExchange::load(std::span<const std::byte> bytes) try {
  state_->load(bytes);
} catch (...) {
  rethrow_as_error("load");
}
std::uint64_t GradientExchange::plan_hash() const {
  return state_->plan().hash;
}
ExchangeStatistics GradientExchange::statistics() const {
  return state_->statistics();
}

std::vector<SliceReport> GradientExchange::plan() const try {
  std::vector<SliceReport> reports;
  for (const auto& slice : state_->plan().slices) {
    SliceReport report;
    for (const auto& segment : slice.segments)
      report.keys += (report.keys.empty() ? "" : ",") + state_->gradients()[segment.gradient].key;
    report.bucket = slice.bucket;
    report.priority = slice.priority;
    report.bytes = slice.bytes;
    if (!slice.segments.empty())
      report.compressor = state_->compressor_of(slice.segments.front().gradient).spec();
    reports.push_back(std::move(report));
  }
  return reports;
} catch (...) {
  rethrow_as_error("plan");
}

}  // namespace tersum
