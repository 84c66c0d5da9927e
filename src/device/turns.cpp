#include "src/device/turns.hpp"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "src/collectives/collectives.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kBytes = sizeof(std::uint64_t);

Status aborted_status() {
  return {Code::Aborted, "the step has failed elsewhere"};
}

}  // namespace

/// The number of this operation's turn. Messages take hops `hop` (who asks) and `hop` + 1 (turns).
Task<std::uint64_t> Turns::ask(Operation& op, std::uint64_t hop) {
  const auto ranks = static_cast<std::size_t>(op.size());
  const auto numbers = op.scratch(kBytes * (ranks + 1));
  auto* const number = reinterpret_cast<std::uint64_t*>(numbers.data());
  const auto slot = [&](int rank) { return kBytes * (static_cast<std::size_t>(rank) + 1); };
  const bool first = op.rank() == 0;
  std::memset(numbers.data(), 0, numbers.size());
  std::vector<Transfer> asking, giving;
  const auto ask_with = [&](int rank) {
    asking.push_back(op.receive(rank, hop, write_view(numbers.data(), slot(rank), kBytes)));
    asking.push_back(op.send(rank, hop, read_view(numbers.data(), slot(op.rank()), kBytes)));
  };
  if (!first) {
    ask_with(0);
    giving.push_back(op.receive(0, hop + 1, write_view(numbers.data(), 0, kBytes)));
  }
  for (int rank = 1; first && rank < op.size(); ++rank) ask_with(rank);
  for (auto& transfer : asking) co_await transfer;
  if (first) *number = given_++;
  for (int rank = 1; first && rank < op.size(); ++rank)
    giving.push_back(op.send(rank, hop + 1, read_view(numbers.data(), 0, kBytes)));
  for (auto& transfer : giving) co_await transfer;
  co_return *number;
}

void Turns::check() const {
  if (aborted_) throw Error(aborted_status());
}

Task<> Turns::take(Operation& op, std::uint64_t number) {
  check();
  Task<std::uint64_t> asking = ask(op, 2 * number);
  const std::uint64_t turn = co_await asking;
  check();
  if (turn == taken_) co_return;
  ExternalEvent come;
  if (turn < taken_ || !waiting_.emplace(turn, &come).second)
    throw Error(Code::Protocol, "turn " + std::to_string(turn) + " was given twice");
  co_await come.in(op);
}

void Turns::pass() {
  if (const auto next = waiting_.extract(++taken_)) next.mapped()->happen();
}

void Turns::abort() noexcept {
  aborted_ = true;
  for (const auto& [turn, event] : std::exchange(waiting_, {})) event->happen(aborted_status());
}

void Turns::reset() noexcept {
  given_ = taken_ = 0;
  aborted_ = false;
}

}  // namespace tersum::runtime
