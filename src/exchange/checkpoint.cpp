// Checkpoints of an exchange: a header that says whose they are, then each gradient's states.
#include <cstring>

#include "src/exchange/exchange_group.hpp"
#include "src/exchange/exchange_state.hpp"

namespace tersum {
namespace {

struct CheckpointHeader {
  char magic[8] = {'t', 'e', 'r', 's', 'u', 'm', 'c', '2'};
  std::uint64_t plan_hash = 0, step = 0, rank = 0, size = 0;
  std::uint64_t check = 0;  ///< hash of all bytes, with 0 in this place
};

/// 64 bits in which every damaged byte shows.
std::uint64_t check_of(CheckpointHeader header, std::span<const std::byte> states) {
  header.check = 0;
  const auto hash = [](std::uint64_t seed, std::span<const std::byte> bytes) {
    for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data(), sizeof(word));
      seed = runtime::mix(seed, word);
    }
    for (const std::byte byte : bytes) seed = runtime::mix(seed, std::to_integer<unsigned>(byte));
    return runtime::mix(seed, bytes.size());
  };
  return hash(hash(0, std::as_bytes(std::span(&header, 1))), states);
}

}  // namespace

std::vector<std::byte> ExchangeState::save() {
  std::lock_guard lock(mutex_);
  if (user_submitted_ != 0)
    throw Error(Code::InvalidState, "save: a step is under way; commit() or rollback() first");
  CheckpointHeader header;
  header.plan_hash = plan_.hash;
  header.step = user_step_;
  header.rank = static_cast<std::uint64_t>(group_->rank());
  header.size = static_cast<std::uint64_t>(group_->size());
  std::vector<std::byte> bytes(sizeof(header));
  for (const Track& track : tracks_)
    for (const CompressorState* state : {track.state.get(), track.reducer_state.get()}) {
      if (state == nullptr) continue;
      const auto saved = state->save();
      const std::uint64_t length = saved.size();
      const auto* begin = reinterpret_cast<const std::byte*>(&length);
      bytes.insert(bytes.end(), begin, begin + sizeof(length));
      bytes.insert(bytes.end(), saved.begin(), saved.end());
    }
  header.check = check_of(header, std::span(bytes).subspan(sizeof(header)));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

void ExchangeState::load(std::span<const std::byte> bytes) {
  const auto refuse = [](const std::string& what) {
    throw Error(Code::InvalidArgument, "load: " + what);
  };
  std::lock_guard lock(mutex_);
  if (user_submitted_ != 0)
    throw Error(Code::InvalidState, "load: a step is under way; commit() or rollback() first");
  CheckpointHeader header;
  const CheckpointHeader expected;
  if (bytes.size() < sizeof(header)) refuse("the checkpoint is cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0)
    refuse("this is no checkpoint of an exchange");
  if (header.rank != static_cast<std::uint64_t>(group_->rank()) ||
      header.size != static_cast<std::uint64_t>(group_->size()))
    refuse("it is of rank " + std::to_string(header.rank) + " of " + std::to_string(header.size) +
           ", not of rank " + std::to_string(group_->rank()) + " of " +
           std::to_string(group_->size()) + ": each rank loads its own");
  if (header.plan_hash != plan_.hash)
    refuse(
        "it is of another plan: gradients, compressors, slices and seed must be the same, and "
        "between hosts with several GPUs each the ranks of each host");

  std::vector<std::span<const std::byte>> parts;  // all of them are found before any is changed
  std::size_t at = sizeof(header);
  for (const Track& track : tracks_)
    for (const CompressorState* state : {track.state.get(), track.reducer_state.get()}) {
      if (state == nullptr) continue;
      std::uint64_t length = 0;
      if (bytes.size() - at < sizeof(length)) refuse("the checkpoint is cut off");
      std::memcpy(&length, bytes.data() + at, sizeof(length));
      at += sizeof(length);
      if (bytes.size() - at < length) refuse("the checkpoint is cut off");
      if (length != state->save().size()) refuse("a compressor's state has another size");
      parts.push_back(bytes.subspan(at, length));
      at += length;
    }
  if (at != bytes.size()) refuse("the checkpoint is longer than it should be");
  if (header.check != check_of(header, bytes.subspan(sizeof(header))))
    refuse("the checkpoint is damaged: its bytes are not those that were saved");
  std::vector<CompressorState*> states;
  std::vector<std::vector<std::byte>> before;
  for (Track& track : tracks_)
    for (CompressorState* state : {track.state.get(), track.reducer_state.get()})
      if (state != nullptr) {
        states.push_back(state);
        before.push_back(state->save());
      }
  try {
    for (std::size_t i = 0; i < states.size(); ++i) states[i]->load(parts[i]);
  } catch (const Error&) {  // a state looked right from outside only: nothing of it may stay
    for (std::size_t i = 0; i < states.size(); ++i) states[i]->load(before[i]);
    throw;
  }
  user_step_ = header.step;
  // The round stays, so that ranks that disagree about the step meet and find out.
  session_->engine().submit(runtime::make_command(
      [self = shared_from_this(), step = user_step_] { self->step_ = step; }));
}

}  // namespace tersum
