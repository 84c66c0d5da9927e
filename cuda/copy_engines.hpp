// Exchanges between two ranks in which copy engines carry the data.
#pragma once

#include "cuda/collective_layout.hpp"
#include "cuda/collectives.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"

namespace tersum::gpu {

/// The streams through which one communicator drives copy engines. Not thread-safe.
class CopyEngines {
 public:
  /// For the device that is current now.
  explicit CopyEngines(const PeerSettings& settings);

  /// `exchange` in slices through the staging memory of both ranks, behind what is in `stream` and
  /// before what comes after. Can be captured. Error InvalidArgument if what is written would
  /// overwrite what is still to be sent, unless it does so at the same place.
  void run(const Group& group, const Exchange& exchange, DType dtype, StreamView stream) const;

 private:
  struct Side {
    Stream stream;
    Event reached;  // the latest point that another stream waits for
  };

  void copy_slices(const Group& group, const std::byte* input, std::uint64_t bytes,
                   DType dtype) const;

  SliceShape shape_;
  int blocks_;
  Event forked_;
  Side copies_;
  Side signals_;  // that a slice has been copied
  Side credits_;  // waits for slots
};

}  // namespace tersum::gpu
