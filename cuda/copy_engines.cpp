#include "cuda/copy_engines.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/collective_kernels.hpp"
#include "cuda/error.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {
namespace {

struct Region {
  const std::byte* begin;
  std::uint64_t bytes;

  bool meets(const Region& other) const noexcept {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
  friend bool operator==(const Region&, const Region&) = default;
};

Region sent_by(const Group& group, const Exchange& exchange) noexcept {
  const Range& run = exchange.send[1 - group.rank];
  return {exchange.input + run.offset, run.bytes};
}

/// Of what comes from the peer, or of the reduction with it.
Region received_by(const Group& group, const Exchange& exchange) noexcept {
  const int peer = 1 - group.rank;
  return {exchange.output + exchange.place[exchange.combine ? group.rank : peer].offset,
          exchange.place[peer].bytes};
}

/// What the next work of a stream that records a graph will wait for.
std::vector<cudaGraphNode_t> latest_nodes(StreamView stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t count = 0;
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream.get(), &status, nullptr, nullptr, &nodes, nullptr, &count),
        "cudaStreamGetCaptureInfo");
#else
  check(cudaStreamGetCaptureInfo_v2(stream.get(), &status, nullptr, nullptr, &nodes, &count),
        "cudaStreamGetCaptureInfo");
#endif
  if (status != cudaStreamCaptureStatusActive)
    check(cudaErrorStreamCaptureInvalidated, "cudaStreamGetCaptureInfo");
  return {nodes, nodes + count};
}

void set_latest_nodes(StreamView stream, std::vector<cudaGraphNode_t> nodes) {
#if CUDART_VERSION >= 13000
  check(cudaStreamUpdateCaptureDependencies(stream.get(), nodes.data(), nullptr, nodes.size(),
                                            cudaStreamSetCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
#else
  check(cudaStreamUpdateCaptureDependencies(stream.get(), nodes.data(), nodes.size(),
                                            cudaStreamSetCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
#endif
}

/// Piece `index` of what `whole` exchanges.
PieceExchange piece_of(const PieceExchange& whole, const PieceShape& shape, std::uint32_t index) {
  const std::uint64_t begin = index * shape.piece_bytes;
  PieceExchange piece = whole;
  piece.sent += begin;
  piece.own += begin;
  piece.output += begin;
  piece.kept += begin;
  piece.sent_bytes = shape.piece(whole.sent_bytes, index).bytes;
  piece.received_bytes = shape.piece(whole.received_bytes, index).bytes;
  piece.kept_bytes = shape.piece(whole.kept_bytes, index).bytes;
  piece.sent_head = shape.head(piece.sent_bytes);
  piece.received_head = shape.head(piece.received_bytes);
  return piece;
}

}  // namespace

CopyEngines::CopyEngines(const PeerSettings& settings)
    : shape_{settings.staging_bytes, settings.head_bytes}, blocks_(settings.staging_blocks) {}

void CopyEngines::run(const Group& group, const Exchange& exchange, DType dtype,
                      StreamView stream) const {
  const int rank = group.rank;
  const Region sent = sent_by(group, exchange), received = received_by(group, exchange);
  PieceExchange whole{};
  whole.sent = sent.begin;
  whole.own = exchange.input + exchange.send[rank].offset;
  whole.output = const_cast<std::byte*>(received.begin);
  whole.kept = exchange.output + exchange.place[rank].offset;
  whole.sent_bytes = sent.bytes;
  whole.received_bytes = received.bytes;
  if (!exchange.combine && whole.own != whole.kept) {
    whole.kept_bytes = exchange.place[rank].bytes;
  }
  whole.combine = exchange.combine;
  whole.aligned = exchange.aligned;
  whole.in_place = sent.meets(received);
  const Region kept{whole.kept, whole.kept_bytes};
  if (sent.meets(kept) || (whole.in_place && sent != received)) {
    throw Error(Code::InvalidArgument, "input and output overlap, but are not in place");
  }
  whole.arithmetic = exchange.arithmetic;
  const std::uint32_t pieces =
      shape_.count(std::max({whole.sent_bytes, whole.received_bytes, whole.kept_bytes}));
  for (std::uint32_t index = 0; index < pieces; ++index) {
    run(group, piece_of(whole, shape_, index), dtype, stream);
  }
}

void CopyEngines::run(const Group& group, const PieceExchange& piece, DType dtype,
                      StreamView stream) const {
  const bool copies = piece.sent_bytes > 0;
  if (copies) copy(group, piece, dtype, stream);
  launch_piece(group, piece, dtype, blocks_, stream);
  if (!copies || !stream.is_capturing()) return;
  // The graph has to hold the copies, but what follows in `stream` waits for the kernel alone.
  std::vector<cudaGraphNode_t> latest = latest_nodes(stream);
  copied_.record(copies_);
  stream.wait(copied_);
  set_latest_nodes(stream, std::move(latest));
}

void CopyEngines::copy(const Group& group, const PieceExchange& piece, DType dtype,
                       StreamView stream) const {
  const int peer = 1 - group.rank;
  const std::byte* from = piece.sent + piece.sent_head;
  std::byte* const to = group.arena[peer] + group.staging_offset + piece.sent_head;
  const std::uint64_t bytes = piece.sent_bytes - piece.sent_head;
  const bool whole_words = reinterpret_cast<std::uintptr_t>(from) % 4 == 0;
  if (!whole_words) launch_copy(to, from, bytes, dtype, stream);
  forked_.record(stream);
  copies_.wait(forked_);
  if (whole_words) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, copies_.get()),
          "copy to the peer");
  }
  check(cudaMemcpyAsync(&reinterpret_cast<Board*>(group.arena[peer])->piece_full,
                        &group.progress->piece_number, sizeof(std::uint32_t),
                        cudaMemcpyDeviceToDevice, copies_.get()),
        "copy of a piece's number to the peer");
}

}  // namespace tersum::gpu
