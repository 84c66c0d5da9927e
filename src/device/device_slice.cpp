#include "src/device/device_slice.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/divide.hpp"
#include "cuda/error.hpp"

namespace tersum::runtime {

DeviceSlice::DeviceSlice(ExchangeDevice& device, Operation& op, const SliceJob& job)
    : device_(device), op_(op), job_(job), count_(job.count()), parts_(whole_parts(job)) {
  const gpu::DeviceGuard guard(device_.device());
  stream_ = device_.stream(job.slice);
  if (!job.dense) status_ = device_.take_status(stream_);
}

DeviceSlice::~DeviceSlice() {
  if (status_) device_.give_status(std::move(status_));
}

bool inputs_are_gathered(const SliceJob& job) {
  return job.dtype != DType::Float32 || job.parts.size() > 1;
}

bool results_are_values(const SliceJob& job) {
  if (job.dtype != DType::Float32) return false;
  const std::byte* next = job.parts[0].result;
  for (const SlicePart& part : job.parts) {
    if (part.count > 0 && part.result != next) return false;
    next += part.count * sizeof(float);
  }
  return true;
}

float* DeviceSlice::values() {
  if (values_ != nullptr) return values_;
  if (results_are_values(job_)) return values_ = reinterpret_cast<float*>(job_.parts[0].result);
  values_lease_ = device_.memory().acquire(count_ * sizeof(float), stream_);
  return values_ = values_lease_.as<float>();
}

std::span<std::byte> DeviceSlice::workspace(std::size_t bytes) {
  if (workspace_.bytes() < bytes) workspace_ = device_.memory().acquire(bytes, stream_);
  return {workspace_.data(), workspace_.bytes()};
}

const float* DeviceSlice::input_of(const Piece& piece) {
  if (job_.dtype == DType::Float32)
    return reinterpret_cast<const float*>(piece.part->data) + piece.begin;
  return inputs() + piece.at;
}

const float* DeviceSlice::inputs() {
  if (!inputs_are_gathered(job_)) return reinterpret_cast<const float*>(job_.parts[0].data);
  if (!std::exchange(inputs_read_, true)) {
    gpu::GatherPlan& table = *device_.tables(job_.slice).inputs;
    std::vector<void*> data;
    for (const auto& part : job_.parts)
      if (part.count > 0) data.push_back(const_cast<std::byte*>(part.data));
    table.rebind(data, stream_);
    table.gather(stream_, values());
  }
  return values();
}

std::byte* DeviceSlice::elements() {
  if (elements_.data() == nullptr)
    elements_ = device_.memory().acquire(count_ * element(), stream_);
  return elements_.data();
}

void DeviceSlice::gather() {
  move_elements(true);
}

void DeviceSlice::scatter() {
  move_elements(false);
}

void DeviceSlice::move_elements(bool gathering) {
  for (const Piece& piece : parts_) {
    if (piece.count == 0) continue;
    std::byte* const place = elements() + piece.at * element();
    gpu::check(cudaMemcpyAsync(gathering ? place : piece.part->result,
                               gathering ? piece.part->data : place, piece.count * element(),
                               cudaMemcpyDeviceToDevice, stream_.get()),
               "cudaMemcpyAsync");
  }
}

void DeviceSlice::average(const Piece& piece) {
  if (job_.op == ReduceOp::Average)
    gpu::divide(stream_, values_of(piece), piece.count, static_cast<float>(op_.size()));
}

void DeviceSlice::encode(const Compressor& compressor, std::span<const Piece> pieces, bool reducing,
                         std::byte* out) {
  const gpu::Twin& twin = device_.twin(compressor);
  const auto me = static_cast<std::uint32_t>(op_.group().world());
  for (const Piece& piece : pieces) {
    CompressorState* state = reducing ? piece.part->reducer_state : piece.part->state;
    if (reducing) average(piece);
    twin.compress(stream_, reducing ? values_of(piece) : input_of(piece), piece.count,
                  context_of(piece, reducing ? kReducerRank : me), twin_state_of(state), out,
                  workspace(twin.workspace_bytes(piece.count)));
    out += payload_stride(twin.payload_bytes(piece.count));
  }
}

void DeviceSlice::decode(const Compressor& compressor, std::span<const Piece> pieces,
                         std::span<const std::byte> payloads, std::uint32_t encoder, bool add) {
  const gpu::Twin& twin = device_.twin(compressor);
  std::size_t at = 0;
  for (const Piece& piece : pieces) {
    const auto payload = payloads.subspan(at, twin.payload_bytes(piece.count));
    const SliceContext context = context_of(piece, encoder);
    const auto space = workspace(twin.workspace_bytes(piece.count));
    if (add)
      twin.decompress_add(stream_, payload, context, 1.0f, values_of(piece), piece.count, space,
                          *status_);
    else
      twin.decompress(stream_, payload, context, values_of(piece), piece.count, space, *status_);
    at += payload_stride(payload.size());
  }
}

void DeviceSlice::store() {
  if (!values_lease_.data()) return;  // they are there
  device_.tables(job_.slice).results->scatter(stream_, values_);
}

}  // namespace tersum::runtime
