// Streams that wait for works.
#pragma once

#include "src/engine/work_state.hpp"
#include "tersum/types.hpp"

namespace tersum::runtime {

/// What is put into `stream` from now on starts after `work` is done. See Work::wait_on().
void hold_until(Stream stream, WorkState& work);

}  // namespace tersum::runtime
