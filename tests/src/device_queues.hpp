// For programs in which ranks are threads that share a GPU.
#pragma once

#include <cstdlib>

namespace tersum::test {

/// Gives each stream a queue of its own: by default CUDA has eight for all streams of a process on
/// a GPU, and what waits for another rank in one of them may hold up what that rank is waiting for.
/// Before main(), because CUDA reads it once. Not in ranks that are processes (device_job.hpp):
/// there many queues make start-up and turns on a shared GPU slow.
inline const bool kQueuesAreNotShared = std::getenv("TERSUM_TEST_ROLE") == nullptr &&
                                        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0;

}  // namespace tersum::test
