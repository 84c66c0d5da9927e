// Kernels that are on the device before they are needed.
#pragma once

namespace tersum::gpu {

/// Brings the kernels of twins and gathers onto the current device; collectives bring their own
/// when a group is made. CUDA loads a kernel when it is first launched, and a stream that waits for
/// the host keeps it from doing so: whoever has streams wait for works that launch kernels calls
/// this first. Quick when all are loaded. Blocks; any thread.
void load_kernels();

// A kernel of each source file, which is a module of its own: one leads to all the others.
const void* cast_twin_kernel();
const void* divide_kernel();
const void* elias_fano_kernel();
const void* gather_kernel();
const void* kernel_copy_kernel();
const void* qint_twin_kernel();
const void* randomk_twin_kernel();
const void* sign_twin_kernel();
const void* step_counter_kernel();
const void* topk_candidates_kernel();
const void* topk_twin_kernel();
const void* twin_mask_kernel();

}  // namespace tersum::gpu
