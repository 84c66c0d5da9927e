#include "perf/nccl.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <vector>

#include "cuda/error.hpp"
#include "cuda/nccl_loader.hpp"

namespace tersum::perf {
namespace {

/// Loads NCCL on all ranks or on none.
std::shared_ptr<const gpu::NcclLibrary> load_everywhere(Communicator& communicator,
                                                        const std::string& path) {
  std::shared_ptr<const gpu::NcclLibrary> library;
  Status failure;
  try {
    library = gpu::NcclLibrary::load(path);
  } catch (const Error& error) {
    failure = error.status();
  }
  int without = library ? -1 : communicator.rank();
  communicator.all_reduce(&without, &without, 1, DType::Int32, ReduceOp::Max).wait();
  if (!failure.is_ok()) throw Error(failure);
  if (without >= 0) {
    throw Error(Code::Unsupported, "--compare nccl: rank " + std::to_string(without) +
                                       " cannot load NCCL; its own message says why");
  }
  return library;
}

/// NCCL refuses ranks that share a GPU, in words that help nobody.
void require_own_gpus(Communicator& communicator) {
  int device = 0;
  gpu::check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties;
  gpu::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  using Uuid = std::array<char, sizeof(properties.uuid.bytes)>;
  Uuid mine;
  std::memcpy(mine.data(), properties.uuid.bytes, mine.size());
  std::vector<Uuid> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(mine.data(), all.data(), mine.size(), DType::Int8).wait();
  for (std::size_t b = 0; b < all.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (all[a] != all[b]) continue;
      throw Error(Code::Unsupported, "--compare nccl: ranks " + std::to_string(a) + " and " +
                                         std::to_string(b) +
                                         " share a GPU, which NCCL refuses; start no more ranks "
                                         "than there are GPUs");
    }
  }
}

}  // namespace

Nccl join_nccl(Communicator& communicator, const Problem& problem, const std::string& library,
               Stream stream) {
  const auto loaded = load_everywhere(communicator, library);
  require_own_gpus(communicator);
  gpu::NcclId id{};
  if (communicator.rank() == 0) id = loaded->new_id();
  communicator.broadcast(id.bytes.data(), id.bytes.size(), DType::Int8, 0).wait();
  const auto nccl =
      std::make_shared<gpu::NcclCommunicator>(loaded, communicator.rank(), communicator.size(), id);
  const auto start = [nccl, problem, on = gpu::StreamView(stream)](const Shape& shape,
                                                                   const void* in, void* out) {
    const int next = (problem.rank + 1) % problem.ranks;
    const int previous = (problem.rank + problem.ranks - 1) % problem.ranks;
    const std::size_t count = shape.count;
    const DType dtype = problem.dtype;
    switch (problem.traits->collective) {
      case Collective::AllReduce:
        return nccl->all_reduce(in, out, count, dtype, problem.op, on);
      case Collective::ReduceScatter:
        return nccl->reduce_scatter(in, out, count, dtype, problem.op, on);
      case Collective::AllGather:
        return nccl->all_gather(in, out, count, dtype, on);
      case Collective::Broadcast:
        return nccl->broadcast(out, out, count, dtype, problem.root, on);
      case Collective::Reduce:
        return nccl->reduce(in, out, count, dtype, problem.op, problem.root, on);
      case Collective::AllToAll:
        return nccl->all_to_all(in, out, count, dtype, on);
      case Collective::SendReceive:
        return nccl->send_receive(in, next, out, previous, count, dtype, on);
      default:
        throw Error(Code::Unsupported, "NCCL has no " + std::string(problem.traits->name));
    }
  };
  return {loaded->version(), loaded->path(), start};
}

}  // namespace tersum::perf
