#include <algorithm>
#include <cstring>

#include "src/collectives/collectives.hpp"
#include "src/exchange/slice_job.hpp"

namespace tersum::runtime {
namespace {

/// A run of whole blocks of one part (the part's last block may be short).
struct Piece {
  const SlicePart* part;
  std::size_t begin;  ///< element inside the part
  std::size_t count;
  std::size_t at;  ///< element inside the slice
};

/// Which pieces each rank owns: the slice's blocks, in order, shared out evenly. Equal on all
/// ranks.
std::vector<std::vector<Piece>> share_out(const SliceJob& job, int ranks) {
  const std::size_t block = std::max<std::size_t>(1, job.compressor->traits().block_count);
  std::size_t total = 0;
  for (const auto& part : job.parts) total += (part.count + block - 1) / block;
  const Partition shares{total, ranks};
  std::vector<std::vector<Piece>> owned(static_cast<std::size_t>(ranks));
  std::size_t first = 0, element = 0;  // first block of the part; its first element in the slice
  for (const auto& part : job.parts) {
    const std::size_t blocks = (part.count + block - 1) / block;
    for (int r = 0; r < ranks; ++r) {
      const std::size_t begin = std::max(first, shares.offset(r)),
                        end = std::min(first + blocks, shares.offset(r + 1));
      if (begin >= end) continue;
      const std::size_t from = (begin - first) * block,
                        to = std::min(part.count, (end - first) * block);
      owned[static_cast<std::size_t>(r)].push_back({&part, from, to - from, element + from});
    }
    first += blocks;
    element += part.count;
  }
  return owned;
}

SliceContext context_of(const Piece& piece, std::uint32_t encoder) {
  SliceContext context = piece.part->context;
  context.offset += piece.begin;
  context.rank = encoder;
  return context;
}

std::size_t room_for(const Compressor& compressor, const std::vector<Piece>& pieces) {
  std::size_t bytes = 0;
  for (const auto& piece : pieces)
    bytes += payload_stride(compressor.max_payload_bytes(piece.count));
  return bytes;
}

/// Encodes values (of the whole slice) of some pieces, one payload after the other. Returns the
/// bytes written.
template <class Values>
std::size_t encode_pieces(const Compressor& compressor, const std::vector<Piece>& pieces,
                          std::uint32_t encoder, bool reducing, const Values& values_of,
                          std::span<std::byte> out) {
  std::size_t at = 0;
  for (const auto& piece : pieces) {
    auto payload = out.subspan(at, compressor.max_payload_bytes(piece.count));
    CompressorState* state = reducing ? piece.part->reducer_state : piece.part->state;
    const std::size_t bytes =
        compressor.compress(values_of(piece), context_of(piece, encoder), state, payload);
    std::memset(out.data() + at + bytes, 0, payload_stride(bytes) - bytes);
    at += payload_stride(bytes);
  }
  return at;
}

/// Decodes a message of pieces: into the slice's values, or added to them.
void decode_pieces(const Compressor& compressor, const std::vector<Piece>& pieces,
                   std::span<const std::byte> bytes, int sender, std::uint32_t encoder, bool add,
                   std::span<float> values) {
  std::size_t at = 0;
  for (const auto& piece : pieces) {
    const auto payload = payload_at(bytes, at, sender);
    auto out = values.subspan(piece.at, piece.count);
    try {
      if (add)
        compressor.decompress_add(payload, context_of(piece, encoder), 1.0f, out);
      else
        compressor.decompress(payload, context_of(piece, encoder), out);
    } catch (const Error& error) {
      throw Error(
          Status(error.code(),
                 "payload of rank " + std::to_string(sender) + ": " + error.status().message(), {},
                 sender));
    }
    at += payload_stride(payload.size());
  }
}

}  // namespace

Task<> recompress_exchange(Operation& op, const SliceJob& job) {
  const int ranks = op.size(), rank = op.rank();
  const auto me = static_cast<std::size_t>(rank);
  const Compressor& compressor = *job.compressor;
  const Compressor& reducer = *job.reducer;
  const auto owned = share_out(job, ranks);
  const std::size_t count = job.count();

  // Encode: a message for each owner, this rank included.
  std::vector<std::span<std::byte>> outbox, results;
  std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks));
  for (const auto& pieces : owned) {
    outbox.push_back(op.scratch(room_for(compressor, pieces)));
    results.push_back(op.scratch(room_for(reducer, pieces)));
  }
  auto values =
      float_scratch(op, count);  // inputs as fp32 where they are not, later sums, later results
  auto encode = op.compute(count * 4, [&] {
    const auto input_of = [&](const Piece& piece) {
      SlicePart run = *piece.part;
      run.data += piece.begin * element_bytes(job.dtype);
      run.count = piece.count;
      return part_as_float(run, job.dtype, values.subspan(piece.at, piece.count));
    };
    for (std::size_t r = 0; r < owned.size(); ++r)
      sizes[r] = encode_pieces(compressor, owned[r], static_cast<std::uint32_t>(op.group().world()),
                               false, input_of, outbox[r]);
  });
  co_await encode;
  op.set_stage(Stage::Compressed);
  op.set_stage(Stage::Exchanging);

  // Scatter: payloads go to their owners.
  const std::size_t room = room_for(compressor, owned[me]);
  auto inbox = op.scratch(room * static_cast<std::size_t>(ranks));
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
    std::span<const std::byte> bytes = outbox[me].first(sizes[me]);
    if (r != rank) {
      Transfer& arriving = arrivals[static_cast<std::size_t>((rank - r + ranks) % ranks - 1)];
      const std::size_t got = co_await arriving;
      bytes = inbox.subspan(room * static_cast<std::size_t>(r), got);
    }
    auto add = op.compute(bytes.size() * 4, [&, r, bytes] {
      decode_pieces(compressor, owned[me], bytes, r,
                    static_cast<std::uint32_t>(op.group().world(r)), r > 0, values);
    });
    co_await add;
  }
  std::size_t result_bytes = 0;
  auto reencode = op.compute(count * 4 / static_cast<std::size_t>(ranks), [&] {
    for (const auto& piece : owned[me])
      finish_sum(job.op, ranks, values.subspan(piece.at, piece.count));
    const auto sum_of = [&](const Piece& piece) {
      return std::span<const float>(values.subspan(piece.at, piece.count));
    };
    result_bytes = encode_pieces(reducer, owned[me], kReducerRank, true, sum_of, results[me]);
  });
  co_await reencode;

  // Gather: encoded sums go to everybody, and everybody decodes all of them, its own too.
  for (int d = 1; d < ranks; ++d)
    sends.push_back(op.send((rank + d) % ranks, 1, read_view(results[me].data(), 0, result_bytes)));
  std::vector<std::size_t> arrived(static_cast<std::size_t>(ranks), result_bytes);
  for (int d = 1; d < ranks; ++d) {
    Transfer& arriving = gathers[static_cast<std::size_t>(d - 1)];
    arrived[static_cast<std::size_t>((rank + d) % ranks)] = co_await arriving;
  }
  op.set_stage(Stage::Decompressed);
  auto decode = op.compute(count * 8, [&] {
    for (int r = 0; r < ranks; ++r) {
      const auto owner = static_cast<std::size_t>(r);
      decode_pieces(reducer, owned[owner], results[owner].first(arrived[owner]), r, kReducerRank,
                    false, values);
    }
    std::size_t element = 0;
    for (const auto& part : job.parts) {
      store_result(part, job.dtype, values.subspan(element, part.count));
      element += part.count;
    }
  });
  co_await decode;
  for (auto& transfer : sends) co_await transfer;
}

}  // namespace tersum::runtime
