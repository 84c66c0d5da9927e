#include "cuda/peer_map.hpp"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "cuda/buffer.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

constexpr int kMostRanks = 64;

// What tells processes apart, also across PID namespaces and after a fork.
struct ProcessId {
  std::uint64_t number = 0;
  std::int64_t pid = 0;

  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process() {
  static std::mutex mutex;
  static ProcessId id;
  const std::lock_guard lock(mutex);
  if (id.pid != getpid()) {
    std::random_device random;
    id = {(std::uint64_t{random()} << 32) | random(), getpid()};
  }
  return id;
}

/// Lets `device`, the current one, reach the memory of `other`; for good, as long as the process
/// lives. CUDA calls it an error to ask twice, which tools that watch for errors then show.
void enable_peer_access(int device, int other) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  if (enabled.contains({device, other})) return;
  const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {  // by somebody else in this process
    cudaGetLastError();
  } else {
    check(code, "cudaDeviceEnablePeerAccess");
  }
  enabled.emplace(device, other);
}

struct Introduction {
  ProcessId process;
  std::array<char, 16> gpu;  // its UUID
  int device;                // its index in its process
};

struct Offer {
  std::uint64_t address;  // of the buffer; 0: none
  std::uint64_t bytes;
  std::uint64_t base;        // of its allocation
  std::uint64_t allocation;  // which allocation this is: addresses are used again after a free
  std::uint32_t has_handle;
  cudaIpcMemHandle_t handle;
};

template <class T>
std::vector<T> all_gather(const AllGatherBlobs& function, const T& own) {
  const auto blobs = function(std::as_bytes(std::span(&own, 1)));
  std::vector<T> all(blobs.size());
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    if (blobs[i].size() != sizeof(T)) {
      throw Error(Code::Protocol, "a peer's blob of " + std::to_string(blobs[i].size()) +
                                      " bytes should have " + std::to_string(sizeof(T)));
    }
    std::memcpy(&all[i], blobs[i].data(), sizeof(T));
  }
  return all;
}

int device_with(const std::array<char, 16>& gpu) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    if (std::memcmp(properties.uuid.bytes, gpu.data(), gpu.size()) == 0) return device;
  }
  return -1;
}

std::uint64_t base_of(const void* data) noexcept {
  static const auto get_range =
      driver_function<decltype(cuMemGetAddressRange)>("cuMemGetAddressRange");
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (get_range == nullptr ||
      get_range(&base, &bytes, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) {
    return 0;
  }
  return base;
}

std::uint64_t allocation_of(const void* data) noexcept {
  static const auto get_attribute =
      driver_function<decltype(cuPointerGetAttribute)>("cuPointerGetAttribute");
  std::uint64_t number = 0;
  if (get_attribute == nullptr ||
      get_attribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, reinterpret_cast<CUdeviceptr>(data)) !=
          CUDA_SUCCESS) {
    return 0;
  }
  return number;
}

bool get_handle(const void* data, cudaIpcMemHandle_t& handle) noexcept {
  const cudaError_t code = cudaIpcGetMemHandle(&handle, const_cast<void*>(data));
  if (code != cudaSuccess) cudaGetLastError();
  return code == cudaSuccess;
}

Offer offer_of(const Buffer& own) {
  Offer offer{};
  offer.bytes = own.bytes;
  if (own.data == nullptr || own.bytes == 0 || own.memory != MemoryType::Cuda) return offer;
  offer.address = reinterpret_cast<std::uint64_t>(own.data);
  offer.base = base_of(own.data);
  offer.allocation = allocation_of(own.data);
  offer.has_handle = offer.base != 0 && get_handle(own.data, offer.handle) ? 1 : 0;
  return offer;
}

}  // namespace

bool PeerBuffers::complete() const noexcept {
  return std::none_of(data.begin(), data.end(), [](std::byte* entry) { return entry == nullptr; });
}

bool is_mappable(const void* data) noexcept {
  cudaIpcMemHandle_t handle;
  return data != nullptr && base_of(data) != 0 && get_handle(data, handle);
}

struct PeerMap::State {
  using Key = std::pair<int, std::uint64_t>;  // rank, allocation

  int rank = 0;
  int device = 0;
  AllGatherBlobs gather;
  std::vector<Introduction> ranks;
  std::map<Key, void*> open;

  bool is_local(int peer) const noexcept {
    return ranks[static_cast<std::size_t>(peer)].process ==
           ranks[static_cast<std::size_t>(rank)].process;
  }

  // True if this rank's device reaches the memory of all others' devices.
  bool reaches_all() {
    for (const Introduction& peer : ranks) {
      const int other = device_with(peer.gpu);
      if (other < 0) return false;
      if (other == device) continue;
      int can = 0;
      check(cudaDeviceCanAccessPeer(&can, device, other), "cudaDeviceCanAccessPeer");
      if (can == 0) return false;
      enable_peer_access(device, other);
    }
    return true;
  }

  std::byte* reach(int peer, const Offer& offer) {
    if (offer.address == 0) return nullptr;
    if (is_local(peer)) return reinterpret_cast<std::byte*>(offer.address);
    if (offer.has_handle == 0) return nullptr;
    void*& mapped = open[{peer, offer.allocation}];
    if (mapped == nullptr) {
      const cudaError_t code =
          cudaIpcOpenMemHandle(&mapped, offer.handle, cudaIpcMemLazyEnablePeerAccess);
      if (code != cudaSuccess) {
        open.erase({peer, offer.allocation});
        check(code, "cudaIpcOpenMemHandle");
      }
    }
    return static_cast<std::byte*>(mapped) + (offer.address - offer.base);
  }

  void close_all() noexcept {
    for (const auto& [key, mapped] : open) {
      if (cudaIpcCloseMemHandle(mapped) != cudaSuccess) cudaGetLastError();
    }
    open.clear();
  }
};

PeerMap::PeerMap(int rank, int size, AllGatherBlobs all_gather_function)
    : state_(std::make_unique<State>()) {
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    throw Error(Code::InvalidArgument, "rank " + std::to_string(rank) + " of " +
                                           std::to_string(size) + " ranks of one host: at most " +
                                           std::to_string(kMostRanks) + " are possible");
  }
  state_->rank = rank;
  state_->gather = std::move(all_gather_function);
  check(cudaGetDevice(&state_->device), "cudaGetDevice");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, state_->device), "cudaGetDeviceProperties");
  Introduction own{this_process(), {}, state_->device};
  std::memcpy(own.gpu.data(), properties.uuid.bytes, own.gpu.size());
  state_->ranks = all_gather(state_->gather, own);
  if (state_->ranks.size() != static_cast<std::size_t>(size)) {
    throw Error(Code::InvalidArgument, "the all-gather function gave " +
                                           std::to_string(state_->ranks.size()) + " blobs for " +
                                           std::to_string(size) + " ranks");
  }
  if (!agree(state_->reaches_all())) {
    throw Error(Code::Unsupported,
                "not every GPU of these ranks can map the memory of every other one; see "
                "`nvidia-smi topo -p2p r`, and let CUDA_VISIBLE_DEVICES show all of them");
  }
}

PeerMap::~PeerMap() {
  state_->close_all();
}

int PeerMap::rank() const noexcept {
  return state_->rank;
}

int PeerMap::size() const noexcept {
  return static_cast<int>(state_->ranks.size());
}

bool PeerMap::is_local(int rank) const noexcept {
  return state_->is_local(rank);
}

bool PeerMap::has_nvlink() const {
  for (const Introduction& peer : state_->ranks) {
    const int other = device_with(peer.gpu);
    if (other == state_->device) continue;
    int atomics = 0;
    check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, state_->device,
                                    other),
          "cudaDeviceGetP2PAttribute");
    if (atomics == 0) return false;
  }
  return true;
}

PeerBuffers PeerMap::map(Buffer own) {
  const DeviceGuard guard(state_->device);
  const auto offers = all_gather(state_->gather, offer_of(own));
  PeerBuffers buffers;
  for (int peer = 0; peer < size(); ++peer) {
    const Offer& offer = offers[static_cast<std::size_t>(peer)];
    buffers.data.push_back(peer == state_->rank ? static_cast<std::byte*>(own.data)
                                                : state_->reach(peer, offer));
    buffers.bytes.push_back(offer.bytes);
  }
  return buffers;
}

bool PeerMap::agree(bool value) {
  const auto all = all_gather(state_->gather, static_cast<std::uint8_t>(value ? 1 : 0));
  return std::all_of(all.begin(), all.end(), [](std::uint8_t one) { return one == 1; });
}

void PeerMap::close() {
  const DeviceGuard guard(state_->device);
  state_->close_all();
  agree(true);
}

void PeerMap::meet_by(AllGatherBlobs all_gather_function) {
  state_->gather = std::move(all_gather_function);
}

std::size_t PeerMap::open_count() const noexcept {
  return state_->open.size();
}

}  // namespace tersum::gpu
