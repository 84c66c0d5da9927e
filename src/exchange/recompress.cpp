#include "src/collectives/collectives.hpp"
#include "src/exchange/slice_codec.hpp"

namespace tersum::runtime {

Task<> recompress_exchange(Operation& op, const SliceJob& job, SliceCodec& codec) {
  const int ranks = op.size(), rank = op.rank();
  const auto me = static_cast<std::size_t>(rank);
  const Compressor& compressor = *job.compressor;
  const Compressor& reducer = *job.reducer;
  const auto owned = share_out(job, ranks);

  // Encode: a message for each owner, this rank included.
  std::vector<std::span<std::byte>> outbox, results;
  std::vector<std::size_t> sizes;
  for (const auto& pieces : owned) {
    outbox.push_back(codec.message(room_for(compressor, pieces)));
    results.push_back(codec.message(room_for(reducer, pieces)));
  }
  for (std::size_t r = 0; r < owned.size(); ++r) {
    Task<std::size_t> encode = codec.encode(owned[r], outbox[r]);
    sizes.push_back(co_await encode);
  }
  op.set_stage(Stage::Compressed);
  op.set_stage(Stage::Exchanging);

  // Scatter: payloads go to their owners.
  const std::size_t room = room_for(compressor, owned[me]);
  auto inbox = codec.message(room * static_cast<std::size_t>(ranks));
  std::vector<Transfer> arrivals, gathers, sends;
  for (int d = 1; d < ranks; ++d) {
    const int from = (rank + ranks - d) % ranks;
    arrivals.push_back(
        op.receive(from, 0, write_view(inbox.data(), room * static_cast<std::size_t>(from), room)));
  }
  for (int d = 1; d < ranks; ++d) {
    const auto to = static_cast<std::size_t>((rank + d) % ranks);
    sends.push_back(op.send(static_cast<int>(to), 0, read_view(outbox[to].data(), 0, sizes[to])));
    gathers.push_back(
        op.receive(static_cast<int>(to), 1, write_view(results[to].data(), 0, results[to].size())));
  }

  // Reduce: decode and add in rank order, encode the sum again.
  for (int r = 0; r < ranks; ++r) {
    PayloadMessage message;
    message.bytes = outbox[me].first(sizes[me]);
    message.sender = op.group_rank(r);
    message.encoder = static_cast<std::uint32_t>(op.world(r));
    if (r != rank) {
      Transfer& arriving = arrivals[static_cast<std::size_t>((rank - r + ranks) % ranks - 1)];
      const std::size_t got = co_await arriving;
      message.bytes = inbox.subspan(room * static_cast<std::size_t>(r), got);
    }
    Task<> add = codec.decode(compressor, owned[me], message, r > 0);
    co_await add;
  }
  Task<std::size_t> reencode = codec.encode_sums(owned[me], results[me]);
  const std::size_t result_bytes = co_await reencode;

  // Gather: encoded sums go to everybody, and everybody decodes all of them, its own too.
  for (int d = 1; d < ranks; ++d)
    sends.push_back(op.send((rank + d) % ranks, 1, read_view(results[me].data(), 0, result_bytes)));
  std::vector<std::size_t> arrived(static_cast<std::size_t>(ranks), result_bytes);
  for (int d = 1; d < ranks; ++d) {
    Transfer& arriving = gathers[static_cast<std::size_t>(d - 1)];
    arrived[static_cast<std::size_t>((rank + d) % ranks)] = co_await arriving;
  }
  op.set_stage(Stage::Decompressed);
  for (int r = 0; r < ranks; ++r) {
    const auto owner = static_cast<std::size_t>(r);
    PayloadMessage message;
    message.bytes = results[owner].first(arrived[owner]);
    message.sender = op.group_rank(r);
    message.encoder = kReducerRank;
    Task<> decode = codec.decode(reducer, owned[owner], message, false);
    co_await decode;
  }
  Task<> store = codec.store(false);
  co_await store;
  for (auto& transfer : sends) co_await transfer;
}

}  // namespace tersum::runtime
