// One slice in device memory: its elements as fp32 values, and what twins make of them.
#pragma once

#include <span>
#include <vector>

#include "src/device/exchange_device.hpp"

namespace tersum::runtime {

/// True if the slice's elements have to be brought together to be fp32 values.
bool inputs_are_gathered(const SliceJob& job);
/// True if its results are fp32 and lie one after the other.
bool results_are_values(const SliceJob& job);

/// Puts work into the stream of a slice; each call needs the exchange's device to be current.
/// Engine's thread.
class DeviceSlice {
 public:
  DeviceSlice(ExchangeDevice& device, Operation& op, const SliceJob& job);
  ~DeviceSlice();
  DeviceSlice(const DeviceSlice&) = delete;
  DeviceSlice& operator=(const DeviceSlice&) = delete;

  ExchangeDevice& device() const noexcept { return device_; }
  Operation& operation() const noexcept { return op_; }
  const SliceJob& job() const noexcept { return job_; }
  std::size_t count() const noexcept { return count_; }
  std::size_t element() const noexcept { return element_bytes(job_.dtype); }
  /// Every part as one piece.
  const std::vector<Piece>& parts() const noexcept { return parts_; }
  gpu::StreamView stream() const noexcept { return stream_; }
  const gpu::DecodeStatus& status() const noexcept { return *status_; }

  /// The values of all elements, [count()]: the results themselves, if these are fp32 and lie one
  /// after the other.
  float* values();
  float* values_of(const Piece& piece) { return values() + piece.at; }
  /// The piece's elements as fp32: the user's own memory if it is fp32, else converted to values.
  const float* input_of(const Piece& piece);
  /// All elements as fp32, one after the other: the user's own memory if it is one fp32 gradient,
  /// else gathered to values.
  const float* inputs();

  // Dense slices of several parts: the elements of all, one part after the other.
  std::byte* elements();
  void gather();
  void scatter();

  /// Values become averages, if the job is to average.
  void average(const Piece& piece);
  /// Payloads of `pieces` to `out`, in device memory: of gradients, or of averaged sums.
  void encode(const Compressor& compressor, std::span<const Piece> pieces, bool reducing,
              std::byte* out);
  /// `payloads` are in device memory.
  void decode(const Compressor& compressor, std::span<const Piece> pieces,
              std::span<const std::byte> payloads, std::uint32_t encoder, bool add);
  /// From values to the parts' results.
  void store();

  /// At least `bytes` of scratch, for what follows in the stream.
  std::span<std::byte> workspace(std::size_t bytes);

 private:
  void move_elements(bool gathering);

  ExchangeDevice& device_;
  Operation& op_;
  const SliceJob& job_;
  const std::size_t count_;
  const std::vector<Piece> parts_;
  gpu::StreamView stream_;
  ExchangeDevice::StatusWord status_;
  gpu::BufferLease values_lease_, elements_, workspace_;
  float* values_ = nullptr;
  bool inputs_read_ = false;  // gathered to values
};

}  // namespace tersum::runtime
