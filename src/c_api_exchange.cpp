// C interface: gradient exchanges.
#include <memory>
#include <vector>

#include "src/c_api.hpp"

namespace tersum::c_api {
namespace {

std::optional<std::string> text_or_none(const char* text) {
  return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
}

std::optional<std::size_t> number_or_none(std::size_t number) {
  return number != TERSUM_FROM_CONFIG ? std::optional<std::size_t>(number) : std::nullopt;
}

ExchangeOptions options_of(const tersum_exchange_options_t* options) {
  const tersum_exchange_options_t defaults = TERSUM_EXCHANGE_OPTIONS_INIT;
  const auto given =
      options != nullptr ? versioned(*options, defaults, sizeof(defaults), "options") : defaults;
  ExchangeOptions result;
  result.compressor = text_or_none(given.compressor);
  result.compressor_rules = text_or_none(given.compressor_rules);
  result.policy = text_or_none(given.policy);
  result.compress_min_bytes = number_or_none(given.compress_min_bytes);
  result.bucket_bytes = number_or_none(given.bucket_bytes);
  result.slice_bytes = number_or_none(given.slice_bytes);
  result.credit_bytes = number_or_none(given.credit_bytes);
  if (given.seed != nullptr) result.seed = *given.seed;
  result.op = op_of(given.op);
  return result;
}

std::vector<Gradient> gradients_of(const tersum_gradient_t* gradients, std::size_t count) {
  if (count > 0) required(gradients, "gradients");
  std::vector<Gradient> result;
  for (std::size_t i = 0; i < count; ++i) {
    const tersum_gradient_t& given = gradients[i];
    const std::string name = "gradients[" + std::to_string(i) + "]";
    Gradient gradient;
    gradient.key = &required(given.key, (name + ".key").c_str());
    gradient.count = given.count;
    gradient.dtype = dtype_of(given.dtype);
    gradient.position = given.position;
    if (given.on_device != 0 && given.on_device != 1)
      throw Error(Code::InvalidArgument, name + ".on_device must be 0 or 1");
    gradient.memory = given.on_device == 1 ? MemoryType::Cuda : MemoryType::Host;
    gradient.compressor = text_or_none(given.compressor);
    result.push_back(std::move(gradient));
  }
  return result;
}

/// Calls a function of an exchange.
template <class Exchange, class Function>
int with(Exchange* exchange, Function&& function) noexcept {
  return guarded([&] { function(required(exchange, "exchange").exchange); });
}

}  // namespace
}  // namespace tersum::c_api

using namespace tersum::c_api;  // NOLINT: the functions below are this file's purpose
using tersum::GradientExchange;

int tersum_exchange_create(tersum_comm_t* comm, const tersum_gradient_t* gradients,
                           size_t gradient_count, const tersum_exchange_options_t* options,
                           tersum_exchange_t** exchange) {
  return guarded([&] {
    auto& result = required(exchange, "exchange");
    auto list = gradients_of(gradients, gradient_count);
    std::unordered_map<std::string, std::size_t> index;
    for (std::size_t i = 0; i < list.size(); ++i) index.emplace(list[i].key, i);
    GradientExchange made(required(comm, "comm").communicator, std::move(list),
                          options_of(options));
    result = new tersum_exchange{std::move(made), std::move(index)};
  });
}

int tersum_exchange_index(const tersum_exchange_t* exchange, const char* key, size_t* index) {
  return guarded([&] {
    const auto& keys = required(exchange, "exchange").index;
    const auto found = keys.find(&required(key, "key"));
    if (found == keys.end()) {
      throw tersum::Error(tersum::Code::InvalidArgument,
                          "no gradient is registered under the key '" + std::string(key) + "'");
    }
    required(index, "index") = found->second;
  });
}

int tersum_exchange_submit(tersum_exchange_t* exchange, size_t index, void* data, void* stream,
                           tersum_work_t** work) {
  return with(exchange, [&](GradientExchange& gradients) {
    std::unique_ptr<tersum_work> handle;
    if (work != nullptr) handle = std::make_unique<tersum_work>();
    tersum::Work submitted = gradients.submit(index, data, tersum::Stream{stream});
    if (work == nullptr) return;
    handle->work = std::move(submitted);
    *work = handle.release();
  });
}

int tersum_exchange_wait(tersum_exchange_t* exchange, size_t index) {
  return with(exchange, [&](GradientExchange& gradients) { gradients.wait(index); });
}

int tersum_exchange_wait_all(tersum_exchange_t* exchange) {
  return with(exchange, [](GradientExchange& gradients) { gradients.wait_all(); });
}

int tersum_exchange_commit(tersum_exchange_t* exchange) {
  return with(exchange, [](GradientExchange& gradients) { gradients.commit(); });
}

int tersum_exchange_rollback(tersum_exchange_t* exchange) {
  return with(exchange, [](GradientExchange& gradients) { gradients.rollback(); });
}

int tersum_exchange_save(const tersum_exchange_t* exchange, void* buffer, size_t capacity,
                         size_t* bytes) {
  return with(exchange, [&](const GradientExchange& gradients) {
    auto& needed = required(bytes, "bytes");
    const auto saved = gradients.save();
    needed = saved.size();
    if (buffer == nullptr) return;
    if (capacity < saved.size()) {
      throw tersum::Error(tersum::Code::InvalidArgument,
                          "save: the buffer has " + std::to_string(capacity) + " bytes, but " +
                              std::to_string(saved.size()) + " are needed");
    }
    std::memcpy(buffer, saved.data(), saved.size());
  });
}

int tersum_exchange_load(tersum_exchange_t* exchange, const void* data, size_t bytes) {
  return with(exchange, [&](GradientExchange& gradients) {
    if (data == nullptr) throw tersum::Error(tersum::Code::InvalidArgument, "data is NULL");
    gradients.load({static_cast<const std::byte*>(data), bytes});
  });
}

int tersum_exchange_get_statistics(const tersum_exchange_t* exchange,
                                   tersum_exchange_statistics_t* statistics) {
  return with(exchange, [&](const GradientExchange& gradients) {
    auto& result = required(statistics, "statistics");
    if (result.size < sizeof(result)) {
      throw tersum::Error(tersum::Code::InvalidArgument,
                          "statistics.size is " + std::to_string(result.size) +
                              ": set it to sizeof(tersum_exchange_statistics_t)");
    }
    const tersum::ExchangeStatistics now = gradients.statistics();
    result.steps = now.steps;
    result.sent_bytes = now.sent_bytes;
    result.dense_bytes = now.dense_bytes;
    result.slices = now.slices;
    result.overdrawn_slices = now.overdrawn_slices;
  });
}

int tersum_exchange_plan_hash(const tersum_exchange_t* exchange, uint64_t* hash) {
  return with(exchange, [&](const GradientExchange& gradients) {
    required(hash, "hash") = gradients.plan_hash();
  });
}

int tersum_exchange_destroy(tersum_exchange_t* exchange) {
  delete exchange;
  return TERSUM_OK;
}
