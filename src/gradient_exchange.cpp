#include "tersum/gradient_exchange.hpp"

#include "src/exchange/exchange_state.hpp"

namespace tersum {
namespace {

void check_stream(Stream stream) {
  if (stream.handle != nullptr)
    throw Error(Code::Unsupported,
                "streams belong to device memory, which this build has no support for");
}

}  // namespace

GradientExchange::GradientExchange(Communicator communicator, std::vector<Gradient> gradients,
                                   const ExchangeOptions& options) {
  if (!communicator.valid())
    throw Error(Code::InvalidState, "a gradient exchange needs a connected communicator");
  auto state = std::make_shared<ExchangeState>(communicator, std::move(gradients), options);
  state->agree(std::move(communicator));
  // Slices in flight hold the state too, so the end of the last handle must end them.
  ExchangeState* const shared = state.get();
  state_ = std::shared_ptr<ExchangeState>(
      shared, [owner = std::move(state)](ExchangeState*) { owner->close(); });
}

Work GradientExchange::submit(std::string_view key, void* data, Stream stream) {
  check_stream(stream);
  return state_->submit(state_->index_of(key), data);
}

Work GradientExchange::submit(std::size_t index, void* data, Stream stream) {
  check_stream(stream);
  return state_->submit(index, data);
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
std::vector<std::byte> GradientExchange::save() const {
  return state_->save();
}
void GradientExchange::load(std::span<const std::byte> bytes) {
  state_->load(bytes);
}
std::uint64_t GradientExchange::plan_hash() const {
  return state_->plan().hash;
}
ExchangeStatistics GradientExchange::statistics() const {
  return state_->statistics();
}

std::vector<SliceReport> GradientExchange::plan() const {
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
}

}  // namespace tersum
