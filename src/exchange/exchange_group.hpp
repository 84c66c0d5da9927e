// The group of one gradient exchange: tells it what its peers have started and what has failed.
#pragma once

#include "src/exchange/exchange_state.hpp"

namespace tersum {

/// Operations are rounds; all slices of a round fail together. Outlived by its owner as far as
/// callbacks go: the engine drops the group before the owner is destroyed.
class ExchangeState::ExchangeGroup final : public runtime::Group {
 public:
  ExchangeGroup(ExchangeState& owner, std::uint32_t id, int rank, std::vector<int> members)
      : Group(id, rank, std::move(members)), owner_(owner) {}

  bool fail_together(const transport::Key& a, const transport::Key& b) const override {
    return a.operation == b.operation;
  }
  bool has_started(const transport::Key& key) const override;
  void on_early(const transport::Key& key) override;
  void on_operation_failed(const transport::Key& key, const Status& status) override;

 private:
  ExchangeState& owner_;
};

}  // namespace tersum
