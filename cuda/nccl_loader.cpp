#include "cuda/nccl_loader.hpp"

#include <dlfcn.h>

#include <algorithm>

#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

// Values of NCCL's enumerations, which are part of its ABI.
int type_number(DType dtype) {
  switch (dtype) {
    case DType::Int8:
      return 0;
    case DType::UInt8:
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
    case DType::Bool:
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

/// Folders in `folder` (not below), sorted; none if it cannot be read.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

constexpr const char* kName = "libnccl.so.2";

}  // namespace

std::vector<std::string> nccl_places(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> prefixes{root / "usr", root / "usr/local"};
  for (const auto& package : folders_in(root / "opt")) {
    prefixes.push_back(package);
    prefixes.push_back(package / ".venv");
  }
  std::vector<std::filesystem::path> files{root / "usr/local/cuda/lib64" / kName};
  for (const auto& prefix : prefixes) {
    for (const auto& python : folders_in(prefix / "lib")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        files.push_back(python / packages / "nvidia/nccl/lib" / kName);
      }
    }
  }
  std::vector<std::string> places{kName};
  std::error_code error;
  for (const auto& file : files) {
    if (std::filesystem::exists(file, error)) places.push_back(file.string());
  }
  return places;
}

struct NcclLibrary::Functions {
  using Result = int;

  explicit Functions(void* library) : handle(library) {
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

NcclLibrary::NcclLibrary(std::string path, void* handle)
    : path_(std::move(path)), functions_(std::make_unique<Functions>(handle)) {}

NcclLibrary::~NcclLibrary() = default;

std::shared_ptr<const NcclLibrary> NcclLibrary::load(const std::string& path) {
  std::string complaint;
  for (const std::string& place : path.empty() ? nccl_places() : std::vector{path}) {
    if (void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return std::shared_ptr<const NcclLibrary>(new NcclLibrary(place, handle));
    }
    if (complaint.empty()) complaint = dlerror();
  }
  throw Error(Code::Unsupported, "cannot load NCCL (" + complaint +
                                     "): name its file, such as /usr/lib/libnccl.so.2, with "
                                     "--nccl-library");
}

NcclId NcclLibrary::new_id() const {
  NcclId id{};
  functions_->check(functions_->get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

std::string NcclLibrary::version() const {
  int code = 0;
  functions_->check(functions_->get_version(&code), "ncclGetVersion");
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, int rank, int size,
                                   NcclId id)
    : library_(std::move(library)), size_(size) {
  functions().check(functions().init_rank(&communicator_, size, id, rank), "ncclCommInitRank");
}

NcclCommunicator::~NcclCommunicator() {
  functions().destroy(communicator_);
}

void NcclCommunicator::all_reduce(const void* in, void* out, std::size_t count, DType dtype,
                                  ReduceOp op, StreamView stream) {
  functions().check(functions().all_reduce(in, out, count, type_number(dtype), op_number(op),
                                           communicator_, stream.get()),
                    "ncclAllReduce");
}

void NcclCommunicator::reduce_scatter(const void* in, void* out, std::size_t count, DType dtype,
                                      ReduceOp op, StreamView stream) {
  functions().check(functions().reduce_scatter(in, out, count, type_number(dtype), op_number(op),
                                               communicator_, stream.get()),
                    "ncclReduceScatter");
}

void NcclCommunicator::all_gather(const void* in, void* out, std::size_t count, DType dtype,
                                  StreamView stream) {
  functions().check(
      functions().all_gather(in, out, count, type_number(dtype), communicator_, stream.get()),
      "ncclAllGather");
}

void NcclCommunicator::broadcast(const void* in, void* out, std::size_t count, DType dtype,
                                 int root, StreamView stream) {
  functions().check(
      functions().broadcast(in, out, count, type_number(dtype), root, communicator_, stream.get()),
      "ncclBroadcast");
}

void NcclCommunicator::reduce(const void* in, void* out, std::size_t count, DType dtype,
                              ReduceOp op, int root, StreamView stream) {
  functions().check(functions().reduce(in, out, count, type_number(dtype), op_number(op), root,
                                       communicator_, stream.get()),
                    "ncclReduce");
}

void NcclCommunicator::all_to_all(const void* in, void* out, std::size_t count, DType dtype,
                                  StreamView stream) {
  const std::size_t bytes = count * element_bytes(dtype);
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  functions().check(functions().group_start(), "ncclGroupStart");
  for (int peer = 0; peer < size_; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    functions().check(functions().send(from + offset, count, type_number(dtype), peer,
                                       communicator_, stream.get()),
                      "ncclSend");
    functions().check(functions().receive(to + offset, count, type_number(dtype), peer,
                                          communicator_, stream.get()),
                      "ncclRecv");
  }
  functions().check(functions().group_end(), "ncclGroupEnd");
}

void NcclCommunicator::send_receive(const void* in, int to, void* out, int from, std::size_t count,
                                    DType dtype, StreamView stream) {
  functions().check(functions().group_start(), "ncclGroupStart");
  functions().check(
      functions().send(in, count, type_number(dtype), to, communicator_, stream.get()), "ncclSend");
  functions().check(
      functions().receive(out, count, type_number(dtype), from, communicator_, stream.get()),
      "ncclRecv");
  functions().check(functions().group_end(), "ncclGroupEnd");
}

}  // namespace tersum::gpu
