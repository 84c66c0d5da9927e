// Slices in host memory: the CPU's compressors, on the engine's pool.
#include <algorithm>
#include <cstring>

#include "compressors/convert.hpp"
#include "src/exchange/slice_codec.hpp"

namespace tersum::runtime {
namespace {

class HostCodec final : public SliceCodec {
 public:
  HostCodec(Operation& op, const SliceJob& job)
      : op_(op),
        job_(job),
        count_(job.count()),
        parts_(whole_parts(job)),
        plan_(job, op.size(), op.rank()) {
    if (!job.dense) values_ = floats(count_);
  }

  std::span<std::byte> message(std::size_t bytes) override {
    plan_.place(bytes);  // for the sake of codecs whose memory it is
    return op_.scratch(bytes);
  }
  Task<std::span<const std::byte>> gather() override;
  std::span<std::byte> sums() override;
  Task<> scatter() override;
  Task<std::span<const std::byte>> encode_bodies() override;
  Task<> decode_bodies(std::span<const std::byte> bodies) override;
  Task<std::size_t> encode(std::span<const Piece> pieces, std::span<std::byte> out) override;
  Task<> clear() override;
  Task<> decode(const Compressor& compressor, std::span<const Piece> pieces,
                const PayloadMessage& message, bool add) override;
  Task<std::size_t> encode_sums(std::span<const Piece> pieces, std::span<std::byte> out) override;
  Task<> store(bool sums) override;

 private:
  std::span<float> floats(std::size_t count) {
    auto bytes = op_.scratch(count * sizeof(float));
    return {reinterpret_cast<float*>(bytes.data()), count};
  }
  std::span<float> values_of(const Piece& piece) const {
    return values_.subspan(piece.at, piece.count);
  }
  std::span<const float> input_of(const Piece& piece) const;
  void average(std::span<float> values) const noexcept;
  void store_values(const Piece& piece) const;
  std::size_t element() const noexcept { return element_bytes(job_.dtype); }
  std::uint32_t me() const { return static_cast<std::uint32_t>(op_.group().world()); }

  Operation& op_;
  const SliceJob& job_;
  const std::size_t count_;
  const std::vector<Piece> parts_;
  MessagePlan plan_;
  std::span<float> values_;
  std::span<std::byte> sums_;      // dense, several parts
  std::span<std::byte> payloads_;  // linear: of all parts, one after the other
  std::vector<std::size_t> sizes_;
};

/// The piece's elements as fp32: the user's own memory if it is fp32, else converted to its values.
std::span<const float> HostCodec::input_of(const Piece& piece) const {
  const std::byte* data = piece.part->data + piece.begin * element();
  if (job_.dtype == DType::Float32) return {reinterpret_cast<const float*>(data), piece.count};
  compressors::to_float(job_.dtype, data, values_of(piece).data(), piece.count);
  return values_of(piece);
}

void HostCodec::average(std::span<float> values) const noexcept {
  if (job_.op != ReduceOp::Average) return;
  const float divisor = static_cast<float>(op_.size());
  for (float& value : values) value /= divisor;
}

void HostCodec::store_values(const Piece& piece) const {
  if (piece.count > 0)
    compressors::from_float(values_of(piece).data(), job_.dtype, piece.part->result, piece.count);
}

Task<std::span<const std::byte>> HostCodec::gather() {
  if (parts_.size() == 1) co_return std::span(job_.parts[0].data, count_ * element());
  auto gathered = message(count_ * element());
  auto copy = op_.compute(gathered.size(), [&] {
    for (const Piece& piece : parts_)
      if (piece.count > 0)
        std::memcpy(gathered.data() + piece.at * element(), piece.part->data,
                    piece.count * element());
  });
  co_await copy;
  co_return gathered;
}

std::span<std::byte> HostCodec::sums() {
  if (parts_.size() == 1) return {job_.parts[0].result, count_ * element()};
  if (sums_.empty()) sums_ = message(count_ * element());
  return sums_;
}

Task<> HostCodec::scatter() {
  if (parts_.size() == 1) co_return;
  auto copy = op_.compute(sums_.size(), [&] {
    for (const Piece& piece : parts_)
      if (piece.count > 0)
        std::memcpy(piece.part->result, sums_.data() + piece.at * element(),
                    piece.count * element());
  });
  co_await copy;
}

Task<std::span<const std::byte>> HostCodec::encode_bodies() {
  constexpr std::size_t kHeader = sizeof(PayloadHeader);
  const Compressor& compressor = *job_.compressor;
  payloads_ = op_.scratch(room_for(compressor, parts_));
  auto bodies = message(bodies_of(compressor, parts_));
  sizes_.resize(parts_.size());
  std::size_t body = 0;
  auto run = op_.compute(count_ * 4, [&] {
    std::size_t at = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Piece& piece = parts_[i];
      auto payload = payloads_.subspan(at, compressor.max_payload_bytes(piece.count));
      sizes_[i] =
          compressor.compress(input_of(piece), piece.part->context, piece.part->state, payload);
      if (sizes_[i] > kHeader)
        std::memcpy(bodies.data() + body, payload.data() + kHeader, sizes_[i] - kHeader);
      body += sizes_[i] - kHeader;
      at += payload_stride(sizes_[i]);
    }
  });
  co_await run;
  co_return bodies.first(body);
}

Task<> HostCodec::decode_bodies(std::span<const std::byte> bodies) {
  constexpr std::size_t kHeader = sizeof(PayloadHeader);
  auto run = op_.compute(count_ * 4, [&] {
    std::size_t at = 0, body = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Piece& piece = parts_[i];
      if (sizes_[i] > kHeader)
        std::memcpy(payloads_.data() + at + kHeader, bodies.data() + body, sizes_[i] - kHeader);
      job_.compressor->decompress(payloads_.subspan(at, sizes_[i]), piece.part->context,
                                  values_of(piece));
      store_values(piece);
      body += sizes_[i] - kHeader;
      at += payload_stride(sizes_[i]);
    }
  });
  co_await run;
}

/// Encodes pieces, one payload after the other. Returns the bytes written.
template <class Values>
std::size_t encode_pieces(const Compressor& compressor, std::span<const Piece> pieces,
                          std::uint32_t encoder, bool reducing, const Values& values_of,
                          std::span<std::byte> out) {
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    auto payload = out.subspan(at, compressor.max_payload_bytes(piece.count));
    CompressorState* state = reducing ? piece.part->reducer_state : piece.part->state;
    const std::size_t bytes =
        compressor.compress(values_of(piece), context_of(piece, encoder), state, payload);
    const std::size_t stride = payload_stride(bytes);
    if (at + stride <= out.size())
      std::memset(out.data() + at + bytes, 0, stride - bytes);  // no stray bytes on the wire
    at += stride;
  }
  return at;
}

Task<std::size_t> HostCodec::encode(std::span<const Piece> pieces, std::span<std::byte> out) {
  std::size_t bytes = 0;
  auto run = op_.compute(out.size() + count_ * 4, [&] {
    bytes = encode_pieces(
        *job_.compressor, pieces, me(), false, [&](const Piece& p) { return input_of(p); }, out);
  });
  co_await run;
  co_return bytes;
}

Task<std::size_t> HostCodec::encode_sums(std::span<const Piece> pieces, std::span<std::byte> out) {
  std::size_t bytes = 0;
  auto run = op_.compute(count_ * 4 / static_cast<std::size_t>(op_.size()), [&] {
    for (const Piece& piece : pieces) average(values_of(piece));
    const auto sum_of = [&](const Piece& piece) {
      return std::span<const float>(values_of(piece));
    };
    bytes = encode_pieces(*job_.reducer, pieces, kReducerRank, true, sum_of, out);
  });
  co_await run;
  co_return bytes;
}

Task<> HostCodec::clear() {
  auto run = op_.compute(count_ * 4, [&] { std::fill(values_.begin(), values_.end(), 0.0f); });
  co_await run;
}

Task<> HostCodec::decode(const Compressor& compressor, std::span<const Piece> pieces,
                         const PayloadMessage& message, bool add) {
  auto run = op_.compute(message.bytes.size() * 4, [&] {
    std::size_t at = 0;
    for (const Piece& piece : pieces) {
      const auto payload = payload_at(message.bytes, at, message.sender);
      const SliceContext context = context_of(piece, message.encoder);
      try {
        if (add)
          compressor.decompress_add(payload, context, 1.0f, values_of(piece));
        else
          compressor.decompress(payload, context, values_of(piece));
      } catch (const Error& error) {
        throw Error(Status(
            error.code(),
            "payload of rank " + std::to_string(message.sender) + ": " + error.status().message(),
            {}, message.sender));
      }
      at += payload_stride(payload.size());
    }
  });
  co_await run;
}

Task<> HostCodec::store(bool sums) {
  auto run = op_.compute(count_ * 8, [&] {
    if (sums) average(values_);
    for (const Piece& piece : parts_) store_values(piece);
  });
  co_await run;
}

}  // namespace

std::unique_ptr<SliceCodec> make_host_codec(Operation& op, const SliceJob& job) {
  return std::make_unique<HostCodec>(op, job);
}

}  // namespace tersum::runtime
