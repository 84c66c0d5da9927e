#include "scheduler/simulator.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "tersum/error.hpp"

namespace tersum::scheduler {
namespace {

constexpr double kLongestNs = 4e18;  // about 127 years; sums stay far from the end of 64 bits

/// Throws unless all values make sense and everything one after another fits in a Time.
void check(const std::vector<LayerCost>& layers, const LinkCost& link, std::size_t slices) {
  if (layers.empty()) throw Error(Code::InvalidArgument, "no layers to simulate");
  const auto bad_beta = !std::isfinite(link.beta_ns_per_byte) || link.beta_ns_per_byte < 0;
  if (link.alpha < Time{0} || bad_beta) {
    throw Error(Code::InvalidArgument, "alpha and beta must be finite and not negative");
  }
  double total_ns = static_cast<double>(link.alpha.count()) * static_cast<double>(slices);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerCost& layer = layers[i];
    if (layer.forward < Time{0} || layer.backward < Time{0}) {
      throw Error(Code::InvalidArgument, "layer " + std::to_string(i) + " has a negative time");
    }
    total_ns += static_cast<double>(layer.forward.count()) +
                static_cast<double>(layer.backward.count()) +
                link.beta_ns_per_byte * static_cast<double>(layer.bytes);
  }
  if (!(total_ns < kLongestNs)) {
    throw Error(Code::InvalidArgument, "times and sizes add up to more than 127 years");
  }
}

/// When the gradient of each layer is made.
std::vector<Time> ready_times(const std::vector<LayerCost>& layers) {
  std::vector<Time> ready(layers.size());
  Time now{0};
  for (std::size_t i = layers.size(); i-- > 0;) ready[i] = now += layers[i].backward;
  return ready;
}

Time compute_time(const std::vector<LayerCost>& layers) {
  Time total{0};
  for (const LayerCost& layer : layers) total += layer.forward + layer.backward;
  return total;
}

/// Gradients of the layers that have parameters. Indices are found again through `position`.
std::vector<PlanInput> plan_inputs(const std::vector<LayerCost>& layers) {
  std::vector<PlanInput> inputs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].bytes == 0) continue;
    PlanInput input;
    input.key = "layer" + std::to_string(i);
    input.count = layers[i].bytes;
    input.element_bytes = 1;
    input.position = static_cast<int>(i);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

/// The serial channel: slices in the order of their grants.
class Channel {
 public:
  explicit Channel(const LinkCost& link) : link_(link) {}

  void push(SliceId slice, std::size_t bytes, Time now) {
    // Rounded up: a prediction is never below the bound.
    const double wire_ns = std::ceil(link_.beta_ns_per_byte * static_cast<double>(bytes));
    const Time duration = link_.alpha + Time{static_cast<Time::rep>(wire_ns)};
    const Time start = queue_.empty() ? now : queue_.back().end;
    queue_.push_back({slice, start + duration});
    busy_ += duration;
  }
  std::optional<Time> next_end() const {
    return queue_.empty() ? std::nullopt : std::optional(queue_.front().end);
  }
  SliceId pop() {
    const SliceId slice = queue_.front().slice;
    queue_.pop_front();
    return slice;
  }
  Time busy() const { return busy_; }

 private:
  struct Transfer {
    SliceId slice;
    Time end;
  };
  LinkCost link_;
  std::deque<Transfer> queue_;
  Time busy_{0};
};

/// The exchange of one iteration.
class Exchange {
 public:
  Exchange(const std::vector<LayerCost>& layers, const std::vector<PlanInput>& inputs,
           const Plan& plan, const SimulationOptions& options)
      : inputs_(inputs),
        plan_(plan),
        ready_(ready_times(layers)),
        scheduler_(options.scheduler),
        channel_(options.link),
        synced_(layers.size(), Time{0}) {}

  void run() {
    Time now{0};
    for (std::size_t done = 0; done < plan_.slices.size();) {
      for (; next_slice_ < plan_.slices.size() && slice_ready() <= now; ++next_slice_) {
        const Slice& slice = plan_.slices[next_slice_];
        scheduler_.on_ready(static_cast<SliceId>(next_slice_), slice.priority, slice.bytes, now);
      }
      for (; channel_.next_end() && *channel_.next_end() <= now; ++done) finish(now);
      while (const auto grant = scheduler_.next(now)) {
        channel_.push(grant->slice, plan_.slices[grant->slice].bytes, now);
      }
      now = std::max(now, next_event().value_or(now));
    }
  }

  /// When all slices of each layer's gradient were exchanged; 0 for layers without parameters.
  const std::vector<Time>& synced() const { return synced_; }
  Time busy() const { return channel_.busy(); }

 private:
  std::size_t layer_of(std::size_t gradient) const {
    return static_cast<std::size_t>(inputs_[gradient].position);
  }
  /// Slices are numbered in backward order of their buckets, so they become ready in that order.
  Time slice_ready() const {
    const Slice& slice = plan_.slices[next_slice_];
    return ready_[layer_of(plan_.buckets[static_cast<std::size_t>(slice.bucket)].back())];
  }
  void finish(Time now) {
    const SliceId id = channel_.pop();
    scheduler_.on_done(id);
    for (const Segment& segment : plan_.slices[id].segments) {
      Time& synced = synced_[layer_of(segment.gradient)];
      synced = std::max(synced, now);
    }
  }
  std::optional<Time> next_event() const {
    std::optional<Time> next = channel_.next_end();
    if (next_slice_ < plan_.slices.size() && (!next || slice_ready() < *next)) next = slice_ready();
    return next;
  }

  const std::vector<PlanInput>& inputs_;
  const Plan& plan_;
  std::vector<Time> ready_;
  Scheduler scheduler_;
  Channel channel_;
  std::vector<Time> synced_;
  std::size_t next_slice_ = 0;
};

}  // namespace

Prediction simulate(const std::vector<LayerCost>& layers, const SimulationOptions& options) {
  const std::vector<PlanInput> inputs = plan_inputs(layers);
  const Plan plan = make_plan(inputs, options.plan);
  check(layers, options.link, plan.slices.size());
  Exchange exchange(layers, inputs, plan, options);
  exchange.run();

  Prediction prediction;
  prediction.compute = compute_time(layers);
  prediction.communication = exchange.busy();
  prediction.slices = plan.slices.size();
  const std::vector<Time>& synced = exchange.synced();
  Time now{0};
  for (const LayerCost& layer : layers) now += layer.backward;
  if (options.gating == Gating::Iteration) {
    now = std::max(now, *std::max_element(synced.begin(), synced.end()));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    now = std::max(now, synced[i]) + layers[i].forward;
  }
  prediction.iteration = now;
  prediction.exposed = now - prediction.compute;
  return prediction;
}

Time lower_bound(const std::vector<LayerCost>& layers, const LinkCost& link) {
  check(layers, link, 0);
  const std::vector<Time> ready = ready_times(layers);
  Time bound = compute_time(layers);
  Time tail{0};
  for (const LayerCost& layer : layers) tail += layer.forward;
  double bytes = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bytes += static_cast<double>(layers[i].bytes);
    const double wire_ns = std::floor(link.beta_ns_per_byte * bytes);
    bound = std::max(bound, ready[i] + Time{static_cast<Time::rep>(wire_ns)} + tail);
    tail -= layers[i].forward;
  }
  return bound;
}

}  // namespace tersum::scheduler
