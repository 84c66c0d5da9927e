// Predicts one training iteration from layer times and a linear cost model, with the real plan and
// the real scheduler. Pure: for choosing options, for tests, and for tools.
#pragma once

#include <cstddef>
#include <vector>

#include "scheduler/plan.hpp"
#include "scheduler/scheduler.hpp"

namespace tersum::scheduler {

/// One layer: its compute times and the bytes of its gradient (0: no parameters). Layers are listed
/// in forward order; the backward pass makes the gradient of the last one first.
struct LayerCost {
  Time forward{0};
  Time backward{0};
  std::size_t bytes = 0;
};

/// Cost of exchanging one slice among all ranks: alpha + beta * bytes.
struct LinkCost {
  Time alpha{0};
  double beta_ns_per_byte = 0;
};

/// What the next forward pass waits for.
enum class Gating {
  Iteration,  ///< every layer waits for all gradients (a barrier, as in DDP and Horovod)
  Layer,      ///< each layer waits for its own gradient only (cross-barrier)
};

struct SimulationOptions {
  LinkCost link;
  Gating gating = Gating::Layer;
  PlanOptions plan;
  SchedulerOptions scheduler;
};

struct Prediction {
  Time iteration{0};      ///< from the start of backward to the end of the next forward pass
  Time compute{0};        ///< forward and backward of all layers: an iteration without exchange
  Time communication{0};  ///< how long the channel is busy
  Time exposed{0};        ///< iteration - compute: what the exchange adds
  std::size_t slices = 0;
};

/// Simulates the backward pass, the exchange and the next forward pass. A bucket's slices are ready
/// when its last gradient is made. The channel is serial and keeps the order of grants: a granted
/// slice is not preempted, and its whole alpha is paid on the channel, so that more credit never
/// hides latency here (a pessimistic view of small slices). Error InvalidArgument for no layers,
/// for times or costs that are negative, not finite or too large, and as make_plan().
Prediction simulate(const std::vector<LayerCost>& layers, const SimulationOptions& options);

/// No schedule of whatever slices and order is faster, with either gating: the optimum of the
/// preemptive problem without alpha (1 | r_i, q_i, pmtn | Cmax, solved by Jackson's rule),
///   max(T_b + T_f, max_i [r_i + beta * (bytes of layers 0..i) + (forward of layers i..last)]),
/// where r_i is the time from the start of backward until gradient i is made. Errors as simulate().
Time lower_bound(const std::vector<LayerCost>& layers, const LinkCost& link);

}  // namespace tersum::scheduler
