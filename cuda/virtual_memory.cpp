#include "cuda/virtual_memory.hpp"

#include <algorithm>
#include <utility>

#include "cuda/driver.hpp"

namespace tersum::gpu {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 256;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Those functions of the driver; null without it.
struct Driver {
  decltype(cuMemCreate)* create = driver_function<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemRelease)* release = driver_function<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemAddressReserve)* reserve =
      driver_function<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemAddressFree)* free =
      driver_function<decltype(cuMemAddressFree)>("cuMemAddressFree");
  decltype(cuMemMap)* map = driver_function<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemUnmap)* unmap = driver_function<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemSetAccess)* set_access =
      driver_function<decltype(cuMemSetAccess)>("cuMemSetAccess");

  bool is_complete() const noexcept {
    return create && release && reserve && free && map && unmap && set_access;
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

CUmemLocation location_of(Place place, int device) {
#if CUDA_VERSION >= 12020
  if (place == Place::Host) {
    int node = 0;
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device) != cudaSuccess)
      cudaGetLastError();
    return {CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(0, node)};
  }
#endif
  return place == Place::Device ? CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, device}
                                : CUmemLocation{};  // which the driver refuses
}

}  // namespace

VirtualBuffer::VirtualBuffer(Place place, std::size_t bytes) {
  if (bytes == 0 || map(place, bytes)) return;
  if (place == Place::Device) {
    device_ = DeviceBuffer(bytes);
    data_ = device_.data();
  } else {
    pinned_ = PinnedBuffer(bytes);
    data_ = pinned_.data();
  }
  bytes_ = bytes;
}

/// False if the driver does not give that memory in this way: containers may forbid host memory,
/// and old ones have none.
bool VirtualBuffer::map(Place place, std::size_t bytes) {
  const int device = current_device();
  if (!driver().is_complete()) return false;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location_of(place, device);
  const std::size_t rounded = round_up(bytes, kPage);
  CUmemGenericAllocationHandle handle = 0;
  if (driver().create(&handle, rounded, &properties, 0) != CUDA_SUCCESS) return false;
  const CUmemAccessDesc access[] = {
      {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
      {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  CUdeviceptr address = 0;
  if (driver().reserve(&address, rounded, 0, 0, 0) == CUDA_SUCCESS) {
    if (driver().map(address, rounded, 0, handle, 0) == CUDA_SUCCESS) {
      if (driver().set_access(address, rounded, access, place == Place::Device ? 1 : 2) ==
          CUDA_SUCCESS) {
        data_ = reinterpret_cast<std::byte*>(address);
        bytes_ = rounded;
        handle_ = handle;
        return true;
      }
      driver().unmap(address, rounded);
    }
    driver().free(address, rounded);
  }
  driver().release(handle);
  return false;
}

VirtualBuffer::VirtualBuffer(VirtualBuffer&& other) noexcept {
  *this = std::move(other);
}

VirtualBuffer& VirtualBuffer::operator=(VirtualBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(handle_, other.handle_);
  std::swap(device_, other.device_);
  std::swap(pinned_, other.pinned_);
  return *this;
}

VirtualBuffer::~VirtualBuffer() {
  if (handle_ == 0) return;
  const auto address = reinterpret_cast<CUdeviceptr>(data_);
  driver().unmap(address, bytes_);
  driver().free(address, bytes_);
  driver().release(handle_);
}

std::byte* PieceAllocator::take(std::size_t bytes) {
  const std::size_t rounded = round_up(bytes, kAlignment);
  const std::lock_guard lock(mutex_);
  if (rest_.size() >= rounded) {
    std::byte* const piece = rest_.data();
    rest_ = rest_.subspan(rounded);
    return piece;
  }
  const VirtualBuffer& page = pages_.emplace_back(place_, std::max(rounded, kPage));
  const std::span<std::byte> rest{page.data() + rounded, page.bytes() - rounded};
  if (rest.size() > rest_.size()) rest_ = rest;
  return page.data();
}

}  // namespace tersum::gpu
