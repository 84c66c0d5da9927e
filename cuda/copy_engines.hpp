// Exchanges between two ranks in which copy engines carry what is large.
#pragma once

#include "cuda/collective_layout.hpp"
#include "cuda/collectives.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// The streams that copy engines of one communicator are driven through. Not thread-safe.
class CopyEngines {
 public:
  /// For the device that is current now.
  explicit CopyEngines(const PeerSettings& settings);

  /// `exchange` in slices through the staging memory of both ranks, behind what is in `stream` and
  /// before what comes after. A part of each run is pushed by a kernel at the same time: it fills
  /// the gaps that copy engines leave between two slices. Can be captured.
  void run(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) const;

 private:
  void copy_slices(const Group& group, const Exchange& exchange) const;

  struct Side {
    Stream stream;
    Event reached;  // the latest point that another stream waits for
  };

  PeerSettings settings_;
  Event forked_;
  Side copies_;
  Side signals_;  // that a slice has arrived
  Side credits_;  // waits for room
  Side pushes_;
};

}  // namespace tersum::gpu
