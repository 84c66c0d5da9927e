#include "cuda/nccl_loader.hpp"

#include <dlfcn.h>

#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

// Values of NCCL's enumerations, which are part of its ABI.
int type_number(DType dtype) {
  switch (dtype) {
    case DType::Int8:
      return 0;
    case DType::UInt8:
    case DType::Bool:
      return 1;
    case DType::Int32:
      return 2;
    case DType::Int64:
      return 4;
    case DType::Float16:
      return 6;
    case DType::Float32:
      return 7;
    case DType::Float64:
      return 8;
    case DType::BFloat16:
      return 9;
    case DType::Int16:
      break;
  }
  throw Error(Code::Unsupported, "NCCL has no " + std::string(to_string(dtype)));
}

int op_number(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return 0;
    case ReduceOp::Product:
      return 1;
    case ReduceOp::Max:
      return 2;
    case ReduceOp::Min:
      return 3;
    case ReduceOp::Average:
      return 4;
  }
  return 0;
}

}  // namespace

struct NcclCommunicator::Library {
  using Result = int;

  explicit Library(const std::string& name) : handle(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) throw Error(Code::Unsupported, std::string("NCCL: ") + dlerror());
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(init_rank, "ncclCommInitRank");
    find(destroy, "ncclCommDestroy");
    find(error_text, "ncclGetErrorString");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(all_reduce, "ncclAllReduce");
    find(reduce_scatter, "ncclReduceScatter");
    find(all_gather, "ncclAllGather");
    find(broadcast, "ncclBroadcast");
    find(reduce, "ncclReduce");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    if (function == nullptr) throw Error(Code::Unsupported, std::string("NCCL lacks ") + name);
  }

  void check(Result result, const char* what) const {
    if (result != 0) throw Error(Code::System, std::string(what) + ": " + error_text(result));
  }

  void* handle;  // never closed: NCCL has threads
  Result (*get_version)(int*);
  Result (*get_unique_id)(NcclId*);
  Result (*init_rank)(void**, int, NcclId, int);
  Result (*destroy)(void*);
  const char* (*error_text)(Result);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void*, void*, std::size_t, int, int, void*, cudaStream_t);
  Result (*reduce_scatter)(const void*, void*, std::size_t, int, int, void*, cudaStream_t);
  Result (*all_gather)(const void*, void*, std::size_t, int, void*, cudaStream_t);
  Result (*broadcast)(const void*, void*, std::size_t, int, int, void*, cudaStream_t);
  Result (*reduce)(const void*, void*, std::size_t, int, int, int, void*, cudaStream_t);
  Result (*send)(const void*, std::size_t, int, int, void*, cudaStream_t);
  Result (*receive)(void*, std::size_t, int, int, void*, cudaStream_t);
};

NcclId NcclCommunicator::new_id(const std::string& library) {
  const Library loaded(library);
  NcclId id{};
  loaded.check(loaded.get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

NcclCommunicator::NcclCommunicator(const std::string& library, int rank, int size, NcclId id)
    : library_(std::make_unique<Library>(library)), size_(size) {
  library_->check(library_->init_rank(&communicator_, size, id, rank), "ncclCommInitRank");
}

NcclCommunicator::~NcclCommunicator() {
  library_->destroy(communicator_);
}

std::string NcclCommunicator::version() const {
  int code = 0;
  library_->check(library_->get_version(&code), "ncclGetVersion");
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

void NcclCommunicator::all_reduce(const void* in, void* out, std::size_t count, DType dtype,
                                  ReduceOp op, StreamView stream) {
  library_->check(library_->all_reduce(in, out, count, type_number(dtype), op_number(op),
                                       communicator_, stream.get()),
                  "ncclAllReduce");
}

void NcclCommunicator::reduce_scatter(const void* in, void* out, std::size_t count, DType dtype,
                                      ReduceOp op, StreamView stream) {
  library_->check(library_->reduce_scatter(in, out, count, type_number(dtype), op_number(op),
                                           communicator_, stream.get()),
                  "ncclReduceScatter");
}

void NcclCommunicator::all_gather(const void* in, void* out, std::size_t count, DType dtype,
                                  StreamView stream) {
  library_->check(
      library_->all_gather(in, out, count, type_number(dtype), communicator_, stream.get()),
      "ncclAllGather");
}

void NcclCommunicator::broadcast(const void* in, void* out, std::size_t count, DType dtype,
                                 int root, StreamView stream) {
  library_->check(
      library_->broadcast(in, out, count, type_number(dtype), root, communicator_, stream.get()),
      "ncclBroadcast");
}

void NcclCommunicator::reduce(const void* in, void* out, std::size_t count, DType dtype,
                              ReduceOp op, int root, StreamView stream) {
  library_->check(library_->reduce(in, out, count, type_number(dtype), op_number(op), root,
                                   communicator_, stream.get()),
                  "ncclReduce");
}

void NcclCommunicator::all_to_all(const void* in, void* out, std::size_t count, DType dtype,
                                  StreamView stream) {
  const std::size_t bytes = count * element_bytes(dtype);
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  library_->check(library_->group_start(), "ncclGroupStart");
  for (int peer = 0; peer < size_; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    library_->check(
        library_->send(from + offset, count, type_number(dtype), peer, communicator_, stream.get()),
        "ncclSend");
    library_->check(library_->receive(to + offset, count, type_number(dtype), peer, communicator_,
                                      stream.get()),
                    "ncclRecv");
  }
  library_->check(library_->group_end(), "ncclGroupEnd");
}

void NcclCommunicator::send_receive(const void* in, int to, void* out, int from, std::size_t count,
                                    DType dtype, StreamView stream) {
  library_->check(library_->group_start(), "ncclGroupStart");
  library_->check(library_->send(in, count, type_number(dtype), to, communicator_, stream.get()),
                  "ncclSend");
  library_->check(
      library_->receive(out, count, type_number(dtype), from, communicator_, stream.get()),
      "ncclRecv");
  library_->check(library_->group_end(), "ncclGroupEnd");
}

}  // namespace tersum::gpu
