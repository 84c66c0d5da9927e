// For tests whose ranks are threads that share a GPU: their streams must not share its queues too,
// of which there are 8 by default. A stream that waits for a peer would hold up those behind it, the
// peer's among them.
#pragma once

#include <cstdlib>

namespace tersum::test {

inline const bool has_a_queue_for_each_stream =
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;

}  // namespace tersum::test
