// Exchanges between two ranks in which copy engines carry the data.
#pragma once

#include "cuda/collective_layout.hpp"
#include "cuda/collectives.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// The stream through which one communicator drives copy engines. Not thread-safe.
class CopyEngines {
 public:
  /// For the device that is current now.
  explicit CopyEngines(const PeerSettings& settings);

  /// `exchange` in pieces through the staging memory of both ranks, behind what is in `stream` and
  /// before what comes after. Can be captured. Error InvalidArgument if what is written would
  /// overwrite what is still to be sent, unless it does so at the same place.
  void run(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) const;

 private:
  void run(const Group& group, const PieceExchange& piece, DType dtype, StreamView stream) const;
  /// What is sent of `piece`, but for its head, and then its number, in copies_.
  void copy(const Group& group, const PieceExchange& piece, DType dtype, StreamView stream) const;

  PieceShape shape_;
  int blocks_;
  Stream copies_;
  Event forked_, copied_;
};

}  // namespace tersum::gpu
