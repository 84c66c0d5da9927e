// What Slurm's variables say beyond plain numbers.
#pragma once

#include <string>

#include "transport/launch.hpp"

namespace tersum::transport {

/// The first host of a node list: "gpu[03-05,09],login1" gives "gpu03". Error InvalidArgument names
/// `variable` if the brackets do not match.
std::string first_host(const std::string& variable, const std::string& node_list);

/// Tasks on this node: its entry of SLURM_STEP_TASKS_PER_NODE ("2(x3),1", by SLURM_NODEID), or
/// SLURM_NTASKS_PER_NODE, or all of `size` if the step has one node. Error InvalidArgument names
/// the variables if none of them says.
int slurm_local_size(const Environment& environment, int size);

}  // namespace tersum::transport
