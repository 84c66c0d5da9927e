// Slices in device memory: the compressors' twins, on a stream of the exchange's own.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "cuda/divide.hpp"
#include "cuda/error.hpp"
#include "src/device/exchange_device.hpp"
#include "src/device/stream_event.hpp"

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
  std::size_t element() const noexcept { return element_bytes(job_.dtype); }
  float* values_of(const Piece& piece) const noexcept { return values_ + piece.at; }
  const float* input_of(const Piece& piece);
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  void average(const Piece& piece) const;
  void encode_all(const Compressor& compressor, std::span<const Piece> pieces, bool reducing,
                  std::byte* out);
  void decode_all(const Compressor& compressor, std::span<const Piece> pieces,
                  std::span<const std::byte> payloads, std::uint32_t encoder, bool add);
  void store_results();
  void check_payloads(std::span<const Piece> pieces, const PayloadMessage& message) const;
  std::span<std::byte> workspace(const gpu::Twin& twin, std::size_t count);

  ExchangeDevice& device_;
  Operation& op_;
  const SliceJob& job_;
  const std::size_t count_;
  const std::vector<Piece> parts_;
  gpu::StreamView stream_;
  ExchangeDevice::StatusWord status_;
  gpu::BufferLease values_lease_, workspace_;
  float* values_ = nullptr;
  bool inputs_read_ = false;   // converted to values
  gpu::BufferLease payloads_;  // linear: of all parts, one after the other
  std::span<std::byte> sums_;  // dense
  std::vector<PinnedLease> messages_;
  bool pending_ = false;  // the stream may hold copies from or to messages
};

DeviceCodec::DeviceCodec(ExchangeDevice& device, Operation& op, const SliceJob& job)
    : device_(device), op_(op), job_(job), count_(job.count()), parts_(whole_parts(job)) {
  const gpu::DeviceGuard guard(device_.device());
  stream_ = device_.stream(job.slice);
  if (job.dense) return;
  status_ = device_.take_status(stream_);
  if (parts_.size() == 1 && job.dtype == DType::Float32) {
    values_ = reinterpret_cast<float*>(job.parts[0].result);
  } else {
    values_lease_ = device_.memory().acquire(count_ * sizeof(float), stream_);
    values_ = values_lease_.as<float>();
  }
}

DeviceCodec::~DeviceCodec() {
  const gpu::DeviceGuard guard(device_.device());
  if (pending_) cudaStreamSynchronize(stream_.get());  // after a failure; copies end soon
  if (status_) device_.give_status(std::move(status_));
}

std::span<std::byte> DeviceCodec::message(std::size_t bytes) {
  if (bytes == 0) return {};
  const gpu::DeviceGuard guard(device_.device());
  messages_.push_back(device_.pinned().acquire(bytes));
  return {messages_.back().data(), bytes};
}

void DeviceCodec::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  pending_ = true;
  gpu::check(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), "cudaMemcpyAsync");
}

std::span<std::byte> DeviceCodec::workspace(const gpu::Twin& twin, std::size_t count) {
  const std::size_t needed = twin.workspace_bytes(count);
  if (workspace_.bytes() < needed) workspace_ = device_.memory().acquire(needed, stream_);
  return {workspace_.data(), workspace_.bytes()};
}

/// The piece's elements as fp32: the user's own memory if it is fp32, else converted to values.
const float* DeviceCodec::input_of(const Piece& piece) {
  if (job_.dtype == DType::Float32)
    return reinterpret_cast<const float*>(piece.part->data) + piece.begin;
  if (!std::exchange(inputs_read_, true)) {
    auto& table = device_.tables(job_.slice).inputs;
    if (table) {
      std::vector<void*> data;
      for (const auto& part : job_.parts)
        if (part.count > 0) data.push_back(const_cast<std::byte*>(part.data));
      table->rebind(data, stream_);
    } else {
      std::vector<gpu::BucketTensor> tensors;
      for (const Piece& whole : parts_)
        tensors.push_back(
            {const_cast<std::byte*>(whole.part->data), whole.count, job_.dtype, whole.at});
      table = std::make_unique<gpu::GatherPlan>(tensors, stream_);
    }
    table->gather(stream_, values_);
  }
  return values_of(piece);
}

void DeviceCodec::average(const Piece& piece) const {
  if (job_.op == ReduceOp::Average)
    gpu::divide(stream_, values_of(piece), piece.count, static_cast<float>(op_.size()));
}

/// Payloads of `pieces` to `out`, in device memory.
void DeviceCodec::encode_all(const Compressor& compressor, std::span<const Piece> pieces,
                             bool reducing, std::byte* out) {
  const gpu::Twin& twin = device_.twin(compressor);
  const auto me = static_cast<std::uint32_t>(op_.group().world());
  for (const Piece& piece : pieces) {
    CompressorState* state = reducing ? piece.part->reducer_state : piece.part->state;
    if (reducing) average(piece);
    twin.compress(stream_, reducing ? values_of(piece) : input_of(piece), piece.count,
                  context_of(piece, reducing ? kReducerRank : me), twin_state_of(state), out,
                  workspace(twin, piece.count));
    out += payload_stride(twin.payload_bytes(piece.count));
  }
}

/// `payloads` are in device memory.
void DeviceCodec::decode_all(const Compressor& compressor, std::span<const Piece> pieces,
                             std::span<const std::byte> payloads, std::uint32_t encoder, bool add) {
  const gpu::Twin& twin = device_.twin(compressor);
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    const auto payload = payloads.subspan(at, twin.payload_bytes(piece.count));
    const SliceContext context = context_of(piece, encoder);
    const auto space = workspace(twin, piece.count);
    if (add)
      twin.decompress_add(stream_, payload, context, 1.0f, values_of(piece), piece.count, space,
                          *status_);
    else
      twin.decompress(stream_, payload, context, values_of(piece), piece.count, space, *status_);
    at += payload_stride(payload.size());
  }
}

/// From values to the parts' results.
void DeviceCodec::store_results() {
  if (!values_lease_.data()) return;  // they are there
  auto& table = device_.tables(job_.slice).results;
  if (!table) {
    std::vector<gpu::BucketTensor> tensors;
    for (const Piece& whole : parts_)
      tensors.push_back({whole.part->result, whole.count, job_.dtype, whole.at});
    table = std::make_unique<gpu::GatherPlan>(tensors, stream_);
  }
  table->scatter(stream_, values_);
}

// ---- dense ----

Task<std::span<const std::byte>> DeviceCodec::gather() {
  const auto gathered = message(count_ * element());
  {
    const gpu::DeviceGuard guard(device_.device());
    for (const Piece& piece : parts_)
      copy(gathered.data() + piece.at * element(), piece.part->data, piece.count * element(),
           cudaMemcpyDeviceToHost);
  }
  StreamEvent copied(device_.engine(), device_.events(), stream_);
  co_await copied.in(op_);
  pending_ = false;
  co_return gathered;
}

std::span<std::byte> DeviceCodec::sums() {
  if (sums_.empty()) sums_ = message(count_ * element());
  return sums_;
}

Task<> DeviceCodec::scatter() {
  {
    const gpu::DeviceGuard guard(device_.device());
    for (const Piece& piece : parts_)
      copy(piece.part->result, sums_.data() + piece.at * element(), piece.count * element(),
           cudaMemcpyHostToDevice);
  }
  StreamEvent copied(device_.engine(), device_.events(), stream_);
  co_await copied.in(op_);
  pending_ = false;
}

// ---- linear ----

Task<std::span<const std::byte>> DeviceCodec::encode_bodies() {
  const Compressor& compressor = *job_.compressor;
  std::size_t body_bytes = 0;
  for (const Piece& piece : parts_)
    body_bytes += compressor.max_payload_bytes(piece.count) - kHeader;
  const auto bodies = message(body_bytes);
  {
    const gpu::DeviceGuard guard(device_.device());
    payloads_ = device_.memory().acquire(room_for(compressor, parts_), stream_);
    encode_all(compressor, parts_, false, payloads_.data());
    std::size_t at = 0, body = 0;
    for (const Piece& piece : parts_) {
      const std::size_t bytes = compressor.max_payload_bytes(piece.count);
      copy(bodies.data() + body, payloads_.data() + at + kHeader, bytes - kHeader,
           cudaMemcpyDeviceToHost);
      body += bytes - kHeader;
      at += payload_stride(bytes);
    }
  }
  StreamEvent encoded(device_.engine(), device_.events(), stream_);
  co_await encoded.in(op_);
  pending_ = false;
  co_return bodies;
}

Task<> DeviceCodec::decode_bodies(std::span<const std::byte> bodies) {
  const Compressor& compressor = *job_.compressor;
  {
    const gpu::DeviceGuard guard(device_.device());
    std::size_t at = 0, body = 0;
    for (const Piece& piece : parts_) {
      const std::size_t bytes = compressor.max_payload_bytes(piece.count);
      copy(payloads_.data() + at + kHeader, bodies.data() + body, bytes - kHeader,
           cudaMemcpyHostToDevice);
      body += bytes - kHeader;
      at += payload_stride(bytes);
    }
    const auto me = static_cast<std::uint32_t>(op_.group().world());
    decode_all(compressor, parts_, {payloads_.data(), at}, me, false);
  }
  Task<> storing = store(false);
  co_await storing;
}

// ---- payloads of pieces ----

Task<std::size_t> DeviceCodec::encode(std::span<const Piece> pieces, std::span<std::byte> out) {
  {
    const gpu::DeviceGuard guard(device_.device());
    const auto payloads = device_.memory().acquire(out.size(), stream_);
    encode_all(*job_.compressor, pieces, false, payloads.data());
    copy(out.data(), payloads.data(), out.size(), cudaMemcpyDeviceToHost);
  }
  StreamEvent encoded(device_.engine(), device_.events(), stream_);
  co_await encoded.in(op_);
  pending_ = false;
  co_return out.size();
}

Task<std::size_t> DeviceCodec::encode_sums(std::span<const Piece> pieces,
                                           std::span<std::byte> out) {
  {
    const gpu::DeviceGuard guard(device_.device());
    const auto payloads = device_.memory().acquire(out.size(), stream_);
    encode_all(*job_.reducer, pieces, true, payloads.data());
    copy(out.data(), payloads.data(), out.size(), cudaMemcpyDeviceToHost);
  }
  StreamEvent encoded(device_.engine(), device_.events(), stream_);
  co_await encoded.in(op_);
  pending_ = false;
  co_return out.size();
}

Task<> DeviceCodec::clear() {
  const gpu::DeviceGuard guard(device_.device());
  gpu::check(cudaMemsetAsync(values_, 0, count_ * sizeof(float), stream_.get()), "cudaMemsetAsync");
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
  copy(payloads.data(), message.bytes.data(), room, cudaMemcpyHostToDevice);
  decode_all(compressor, pieces, {payloads.data(), room}, message.encoder, add);
  co_return;
}

Task<> DeviceCodec::store(bool sums) {
  {
    const gpu::DeviceGuard guard(device_.device());
    if (sums)
      for (const Piece& piece : parts_) average(piece);
    store_results();
    status_->fetch(stream_);
  }
  StreamEvent stored(device_.engine(), device_.events(), stream_);
  co_await stored.in(op_);
  pending_ = false;
  if (const Status status = status_->status(); !status.is_ok()) throw Error(status);
}

}  // namespace

std::unique_ptr<SliceCodec> make_device_codec(ExchangeDevice& device, Operation& op,
                                              const SliceJob& job) {
  return std::make_unique<DeviceCodec>(device, op, job);
}

}  // namespace tersum::runtime
