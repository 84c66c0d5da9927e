#include "src/collectives/collectives.hpp"
#include "src/exchange/slice_codec.hpp"

namespace tersum::runtime {

Task<> sparse_merge_exchange(Operation& op, const SliceJob& job, SliceCodec& codec) {
  const int ranks = op.size(), rank = op.rank();
  const auto parts = whole_parts(job);
  const std::size_t room = room_for(*job.compressor, parts);
  auto inbox = codec.message(room * static_cast<std::size_t>(ranks));
  const auto slot = [&](int r) { return inbox.subspan(room * static_cast<std::size_t>(r), room); };
  Task<std::size_t> encode = codec.encode(parts, slot(rank));
  const std::size_t own_bytes = co_await encode;
  op.set_stage(Stage::Compressed);
  op.set_stage(Stage::Exchanging);
  std::vector<Transfer> receives, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    receives.push_back(op.receive(from, 0, write_view(slot(from).data(), 0, room)));
  }
  for (int d = 1; d < ranks; ++d)
    sends.push_back(op.send((rank + d) % ranks, 0, read_view(slot(rank).data(), 0, own_bytes)));

  Task<> clear = codec.clear();
  co_await clear;
  for (int r = 0; r < ranks; ++r) {  // rank order; the own payload is decoded like the others
    std::size_t bytes = own_bytes;
    if (r != rank) {
      Transfer& arriving = receives[static_cast<std::size_t>((rank - r + ranks) % ranks - 1)];
      bytes = co_await arriving;
    }
    PayloadMessage message;
    message.bytes = slot(r).first(bytes);
    message.sender = op.group_rank(r);
    message.encoder = static_cast<std::uint32_t>(op.world(r));
    Task<> add = codec.decode(*job.compressor, parts, message, true);
    co_await add;
  }
  op.set_stage(Stage::Decompressed);
  Task<> store = codec.store(true);
  co_await store;
  for (auto& transfer : sends) co_await transfer;
}

}  // namespace tersum::runtime
