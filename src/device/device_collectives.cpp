#include "src/device/device_collectives.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "src/device/peer_collectives.hpp"
#include "src/device/staged_collectives.hpp"
#include "src/session.hpp"

namespace tersum::runtime {

std::size_t input_element_bytes(const DeviceCall& call) noexcept {
  return call.contributors > 0 ? sizeof(float) : element_bytes(call.dtype);
}

Signature signature_of(const DeviceCall& call) noexcept {
  Signature signature;
  signature.kind = call.kind;
  signature.dtype = call.dtype;
  signature.op = call.op;
  signature.root = call.kind == CallKind::PointToPoint ? -1 : call.peer;
  signature.count = call.count;
  signature.detail = call.kind == CallKind::AllGatherV
                         ? digest_of(call.receive_counts)
                         : mix(std::bit_cast<std::uint64_t>(call.pre_scale),
                               std::bit_cast<std::uint64_t>(call.post_scale));
  signature.step = kDeviceMemory;
  return signature;
}

/// Asks the driver: unlike the runtime, it makes no context for that.
bool is_device_memory(const void* data) noexcept {
  static const auto get_attributes =
      gpu::has_device()
          ? gpu::driver_function<decltype(cuPointerGetAttributes)>("cuPointerGetAttributes")
          : nullptr;
  if (get_attributes == nullptr || data == nullptr) return false;
  unsigned type = 0, managed = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&type, &managed};
  const CUresult result =
      get_attributes(2, attributes, values, reinterpret_cast<CUdeviceptr>(data));
  return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE && managed == 0;
}

bool is_known_device_memory(const void* data) noexcept {
  constexpr unsigned kBits = 8;
  static std::array<std::atomic<const void*>, std::size_t{1} << kBits> known{};
  const std::uint64_t number = reinterpret_cast<std::uintptr_t>(data) >> 2;
  auto& entry = known[number * 0x9E3779B97F4A7C15u >> (64 - kBits)];
  if (data != nullptr && entry.load(std::memory_order_relaxed) == data) return true;
  if (!is_device_memory(data)) return false;
  entry.store(data, std::memory_order_relaxed);
  return true;
}

std::shared_ptr<DeviceCollectives> open_device_collectives(CommunicatorState& communicator) {
  if (!gpu::has_device())
    throw Error(Code::Unsupported, "a stream was given, but there is no GPU here");
  if (communicator.session->share_a_host(*communicator.group)) {
    try {
      return open_peer_collectives(communicator);
    } catch (const Error& error) {  // the same on all ranks
      if (error.code() != Code::Unsupported) throw;
    }
  }
  return open_staged_collectives(communicator);
}

}  // namespace tersum::runtime
