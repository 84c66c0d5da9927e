// Slices in device memory: the compressors' twins, on a stream of the exchange's own.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <utility>

#include "cuda/error.hpp"
#include "cuda/kernel_copy.hpp"
#include "src/device/device_slice.hpp"
#include "src/device/stream_event.hpp"
#include "src/reduce.hpp"

namespace tersum::runtime {
namespace {

constexpr std::size_t kHeader = sizeof(PayloadHeader);

class DeviceCodec final : public SliceCodec {
 public:
  DeviceCodec(ExchangeDevice& device, Operation& op, const SliceJob& job);
  ~DeviceCodec() override;

  std::span<std::byte> message(std::size_t bytes) override;
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
  std::size_t element() const noexcept { return slice_.element(); }
  std::size_t count() const noexcept { return slice_.count(); }
  const std::vector<Piece>& parts() const noexcept { return slice_.parts(); }
  void copy(void* to, const void* from, std::size_t bytes);
  Task<std::size_t> encode_with(const Compressor& compressor, std::span<const Piece> pieces,
                                bool reducing, std::span<std::byte> out);
  void check_payloads(std::span<const Piece> pieces, const PayloadMessage& message) const;

  ExchangeDevice& device_;
  Operation& op_;
  const SliceJob& job_;
  DeviceSlice slice_;
  const gpu::StreamView stream_;
  gpu::BufferLease payloads_;  // linear: of all parts, one after the other
  std::span<std::byte> sums_;  // dense
  MessagePlan plan_;
  PinnedLease messages_;  // room for all of them
  bool pending_ = false;  // the stream may hold copies from or to messages
};

DeviceCodec::DeviceCodec(ExchangeDevice& device, Operation& op, const SliceJob& job)
    : device_(device),
      op_(op),
      job_(job),
      slice_(device, op, job),
      stream_(slice_.stream()),
      plan_(job, op.size(), op.rank()) {
  const gpu::DeviceGuard guard(device_.device());
  messages_ = device_.pinned().acquire(plan_.bytes());
}

DeviceCodec::~DeviceCodec() {
  if (pending_) device_.keep(std::move(messages_));  // after a failure
}

std::span<std::byte> DeviceCodec::message(std::size_t bytes) {
  if (bytes == 0) return {};
  return {messages_.data() + plan_.place(bytes), bytes};
}

void DeviceCodec::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  pending_ = true;
  gpu::copy_by_kernel(stream_, to, from, bytes);
}

// ---- dense ----

Task<std::span<const std::byte>> DeviceCodec::gather() {
  const std::size_t bytes =
      job_.partial ? Arithmetic(job_.dtype, job_.op).accumulator_bytes() : element();
  const auto gathered = message(count() * bytes);
  {
    const gpu::DeviceGuard guard(device_.device());
    for (const Piece& piece : parts())
      copy(gathered.data() + piece.at * bytes, piece.part->data, piece.count * bytes);
  }
  StreamEvent copied(device_.engine(), device_.events(), device_.device(), stream_);
  co_await copied.in(op_);
  pending_ = false;
  co_return gathered;
}

std::span<std::byte> DeviceCodec::sums() {
  if (sums_.empty()) sums_ = message(count() * element());
  return sums_;
}

Task<> DeviceCodec::scatter() {
  {
    const gpu::DeviceGuard guard(device_.device());
    for (const Piece& piece : parts())
      copy(piece.part->result, sums_.data() + piece.at * element(), piece.count * element());
  }
  StreamEvent copied(device_.engine(), device_.events(), device_.device(), stream_);
  co_await copied.in(op_);
  pending_ = false;
}

// ---- linear ----

Task<std::span<const std::byte>> DeviceCodec::encode_bodies() {
  const Compressor& compressor = *job_.compressor;
  const auto bodies = message(bodies_of(compressor, parts()));
  {
    const gpu::DeviceGuard guard(device_.device());
    payloads_ = device_.memory().acquire(room_for(compressor, parts()), stream_);
    slice_.encode(compressor, parts(), false, payloads_.data());
    std::size_t at = 0, body = 0;
    for (const Piece& piece : parts()) {
      const std::size_t bytes = compressor.max_payload_bytes(piece.count);
      copy(bodies.data() + body, payloads_.data() + at + kHeader, bytes - kHeader);
      body += bytes - kHeader;
      at += payload_stride(bytes);
    }
  }
  StreamEvent encoded(device_.engine(), device_.events(), device_.device(), stream_);
  co_await encoded.in(op_);
  pending_ = false;
  co_return bodies;
}

Task<> DeviceCodec::decode_bodies(std::span<const std::byte> bodies) {
  const Compressor& compressor = *job_.compressor;
  {
    const gpu::DeviceGuard guard(device_.device());
    std::size_t at = 0, body = 0;
    for (const Piece& piece : parts()) {
      const std::size_t bytes = compressor.max_payload_bytes(piece.count);
      copy(payloads_.data() + at + kHeader, bodies.data() + body, bytes - kHeader);
      body += bytes - kHeader;
      at += payload_stride(bytes);
    }
    const auto me = static_cast<std::uint32_t>(op_.group().world());
    slice_.decode(compressor, parts(), {payloads_.data(), at}, me, false);
  }
  Task<> storing = store(false);
  co_await storing;
}

// ---- payloads of pieces ----

Task<std::size_t> DeviceCodec::encode_with(const Compressor& compressor,
                                           std::span<const Piece> pieces, bool reducing,
                                           std::span<std::byte> out) {
  {
    const gpu::DeviceGuard guard(device_.device());
    const auto payloads = device_.memory().acquire(out.size(), stream_);
    slice_.encode(compressor, pieces, reducing, payloads.data());
    copy(out.data(), payloads.data(), out.size());
  }
  StreamEvent encoded(device_.engine(), device_.events(), device_.device(), stream_);
  co_await encoded.in(op_);
  pending_ = false;
  co_return out.size();
}

Task<std::size_t> DeviceCodec::encode(std::span<const Piece> pieces, std::span<std::byte> out) {
  return encode_with(*job_.compressor, pieces, false, out);
}

Task<std::size_t> DeviceCodec::encode_sums(std::span<const Piece> pieces,
                                           std::span<std::byte> out) {
  return encode_with(*job_.reducer, pieces, true, out);
}

Task<> DeviceCodec::clear() {
  const gpu::DeviceGuard guard(device_.device());
  gpu::check(cudaMemsetAsync(slice_.values(), 0, count() * sizeof(float), stream_.get()),
             "cudaMemsetAsync");
  co_return;
}

/// What the host can see of a message; the device checks the rest.
void DeviceCodec::check_payloads(std::span<const Piece> pieces,
                                 const PayloadMessage& message) const {
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    const auto payload = payload_at(message.bytes, at, message.sender);
    PayloadHeader header;
    std::memcpy(&header, payload.data(), sizeof(header));
    if (header.count != piece.count)
      throw Error(Status(Code::Protocol,
                         "payload of rank " + std::to_string(message.sender) + ": it holds " +
                             std::to_string(header.count) + " elements, not " +
                             std::to_string(piece.count),
                         {}, message.sender));
    at += payload_stride(payload.size());
  }
}

Task<> DeviceCodec::decode(const Compressor& compressor, std::span<const Piece> pieces,
                           const PayloadMessage& message, bool add) {
  check_payloads(pieces, message);
  const gpu::DeviceGuard guard(device_.device());
  const std::size_t room = room_for(compressor, pieces);
  if (message.bytes.size() != room)
    throw Error(Status(Code::Protocol,
                       "payloads of rank " + std::to_string(message.sender) + " have " +
                           std::to_string(message.bytes.size()) + " bytes, not " +
                           std::to_string(room),
                       {}, message.sender));
  const auto payloads = device_.memory().acquire(room, stream_);
  copy(payloads.data(), message.bytes.data(), room);
  slice_.decode(compressor, pieces, {payloads.data(), room}, message.encoder, add);
  co_return;
}

Task<> DeviceCodec::store(bool sums) {
  {
    const gpu::DeviceGuard guard(device_.device());
    if (sums)
      for (const Piece& piece : parts()) slice_.average(piece);
    slice_.store();
    slice_.status().fetch(stream_);
  }
  StreamEvent stored(device_.engine(), device_.events(), device_.device(), stream_);
  co_await stored.in(op_);
  pending_ = false;
  if (const Status status = slice_.status().status(); !status.is_ok()) throw Error(status);
}

}  // namespace

std::unique_ptr<SliceCodec> make_device_codec(ExchangeDevice& device, Operation& op,
                                              const SliceJob& job) {
  return std::make_unique<DeviceCodec>(device, op, job);
}

}  // namespace tersum::runtime
