#include "scheduler/plan.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "scheduler/hash.hpp"
#include "tersum/error.hpp"

namespace tersum::scheduler {
namespace {

using Bucket = std::vector<std::size_t>;

// Four million slices of 1 MiB are 4 TiB of gradients: more is a mistake in the options.
constexpr std::size_t kMaxSlices = std::size_t{1} << 22;

std::size_t bytes_of(const PlanInput& gradient) {
  return gradient.count * gradient.element_bytes;
}

void check_options(const PlanOptions& options) {
  if (options.bucket_bytes == 0) {
    throw Error(Code::InvalidArgument, "bucket_bytes is 0; give at least 1 byte");
  }
  if (options.slice_bytes == 0) {
    throw Error(Code::InvalidArgument, "slice_bytes is 0; give at least 1 byte");
  }
}

void check_gradients(const std::vector<PlanInput>& gradients) {
  std::unordered_set<std::string_view> keys;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const PlanInput& gradient = gradients[i];
    if (gradient.key.empty()) {
      throw Error(Code::InvalidArgument, "gradient number " + std::to_string(i) +
                                             " has an empty key; give every gradient a name");
    }
    const std::string name = "gradient '" + gradient.key + "'";
    if (!keys.insert(gradient.key).second) {
      throw Error(Code::InvalidArgument, name + " is given twice; keys must be unique");
    }
    if (gradient.element_bytes == 0) {
      throw Error(Code::InvalidArgument, name + " has elements of 0 bytes; check its dtype");
    }
    if (gradient.count > std::numeric_limits<std::size_t>::max() / gradient.element_bytes) {
      throw Error(Code::InvalidArgument, name + " has " + std::to_string(gradient.count) +
                                             " elements, more bytes than an address can count");
    }
    if (gradient.position < 0) {
      throw Error(Code::InvalidArgument, name + " has position " +
                                             std::to_string(gradient.position) +
                                             "; positions in the forward pass start at 0");
    }
  }
}

/// The order in which the backward pass makes gradients.
std::vector<std::size_t> backward_order(const std::vector<PlanInput>& gradients) {
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(gradients[a].position, a) > std::pair(gradients[b].position, b);
  });
  return order;
}

std::vector<Bucket> make_buckets(const std::vector<PlanInput>& gradients,
                                 std::size_t bucket_bytes) {
  std::vector<Bucket> buckets;
  std::size_t filled_bytes = 0;
  for (const std::size_t index : backward_order(gradients)) {
    const std::size_t bytes = bytes_of(gradients[index]);
    const bool fits = !buckets.empty() && filled_bytes <= bucket_bytes &&
                      bytes <= bucket_bytes - filled_bytes &&
                      gradients[buckets.back().front()].group == gradients[index].group;
    if (!fits) {
      buckets.emplace_back();
      filled_bytes = 0;
    }
    buckets.back().push_back(index);
    filled_bytes += bytes;
  }
  return buckets;
}

/// Where one gradient lies in the concatenation of its bucket, in bytes.
struct Extent {
  std::size_t gradient = 0;
  std::size_t start = 0;
  std::size_t bytes = 0;
  std::size_t block_bytes = 0;  ///< cuts inside are multiples of it; `bytes`: no cut inside
};

std::vector<Extent> lay_out(const std::vector<PlanInput>& gradients, const Bucket& bucket) {
  std::vector<Extent> extents;
  std::size_t start = 0;
  for (const std::size_t index : bucket) {
    const PlanInput& gradient = gradients[index];
    const std::size_t bytes = bytes_of(gradient);
    const bool whole = gradient.block_count == 0 || gradient.block_count >= gradient.count;
    extents.push_back(
        {index, start, bytes, whole ? bytes : gradient.block_count * gradient.element_bytes});
    start += bytes;
  }
  return extents;
}

/// The permitted cut nearest to `target`, which lies inside `extent`. An edge of the gradient
/// within `tolerance` is taken first, so that no slice carries a splinter of a neighbour.
std::size_t nearest_cut(const Extent& extent, std::size_t target, std::size_t tolerance) {
  const std::size_t before = target - extent.start;
  const std::size_t after = extent.bytes - before;
  if (std::min(before, after) <= tolerance) {
    return before <= after ? extent.start : extent.start + extent.bytes;
  }
  const std::size_t lower = before / extent.block_bytes * extent.block_bytes;
  const std::size_t upper = lower + std::min(extent.block_bytes, extent.bytes - lower);
  return extent.start + (before - lower <= upper - before ? lower : upper);
}

/// Ends of the slices of one bucket: the even division into ceil(total / slice_bytes) parts, every
/// cut moved to the nearest permitted place. Cuts that would leave a crumb are dropped.
std::vector<std::size_t> slice_ends(const std::vector<Extent>& extents, std::size_t total,
                                    std::size_t parts) {
  const std::size_t even = total / parts;
  const std::size_t crumb = std::max<std::size_t>(even / 4, 1);
  std::vector<std::size_t> ends;
  std::size_t last = 0;
  auto extent = extents.begin();
  for (std::size_t k = 1; k < parts; ++k) {
    // total * k / parts, without its overflow.
    const std::size_t target = even * k + total % parts * k / parts;
    while (extent->start + extent->bytes <= target) ++extent;
    const std::size_t cut = nearest_cut(*extent, target, even / 8);
    if (cut < last || cut - last < crumb || total - cut < crumb) continue;
    ends.push_back(cut);
    last = cut;
  }
  ends.push_back(total);
  return ends;
}

void append_slices(const std::vector<PlanInput>& gradients, int bucket,
                   const std::vector<Extent>& extents, const std::vector<std::size_t>& ends,
                   std::vector<Slice>& slices) {
  auto end = ends.begin();
  std::size_t place = 0;  // in the bucket, bytes
  Slice slice;
  for (const Extent& extent : extents) {
    const PlanInput& gradient = gradients[extent.gradient];
    std::size_t done_bytes = 0;
    do {  // once for a gradient of 0 elements, which joins the slice that is open
      if (place == *end && extent.bytes > 0) {
        slices.push_back(std::exchange(slice, {}));
        ++end;
      }
      const std::size_t bytes = std::min(extent.bytes - done_bytes, *end - place);
      slice.priority =
          slice.segments.empty() ? gradient.position : std::min(slice.priority, gradient.position);
      slice.bucket = bucket;
      slice.bytes += bytes;
      slice.segments.push_back(
          {extent.gradient, done_bytes / gradient.element_bytes, bytes / gradient.element_bytes});
      done_bytes += bytes;
      place += bytes;
    } while (done_bytes < extent.bytes);
  }
  slices.push_back(std::move(slice));
}

}  // namespace

Plan make_plan(const std::vector<PlanInput>& gradients, const PlanOptions& options) {
  check_options(options);
  check_gradients(gradients);
  Plan plan;
  plan.buckets = make_buckets(gradients, options.bucket_bytes);
  for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    const std::vector<Extent> extents = lay_out(gradients, plan.buckets[bucket]);
    const std::size_t total = extents.back().start + extents.back().bytes;
    const std::size_t parts =
        total == 0 ? 1
                   : (total - 1) / options.slice_bytes + 1;  // at least one slice, even if empty
    if (parts > kMaxSlices - plan.slices.size()) {
      throw Error(Code::InvalidArgument, "slices of " + std::to_string(options.slice_bytes) +
                                             " bytes make more than " + std::to_string(kMaxSlices) +
                                             " slices; raise slice_bytes");
    }
    append_slices(gradients, static_cast<int>(bucket), extents, slice_ends(extents, total, parts),
                  plan.slices);
  }
  plan.hash = fnv1a64(describe(gradients, plan));
  return plan;
}

}  // namespace tersum::scheduler
