// The plan: gradients -> buckets -> slices. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersum::scheduler {

/// What planning needs to know of one gradient.
struct PlanInput {
  std::string key;
  std::size_t count = 0;
  std::size_t element_bytes = 4;
  int position = 0;   ///< in the forward pass; 0 is needed first
  std::string group;  ///< only gradients of equal group travel together (dtype, compressor spec)
  std::size_t block_count = 1;  ///< may be cut at multiples of this many elements; 0: never
};

/// A run of elements of one gradient.
struct Segment {
  std::size_t gradient = 0;  ///< index into the inputs
  std::size_t offset = 0;    ///< first element
  std::size_t count = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

struct Slice {
  int bucket = 0;
  int priority = 0;               ///< smallest position of its gradients; 0 is most urgent
  std::size_t bytes = 0;          ///< uncompressed
  std::vector<Segment> segments;  ///< in order, at least one; of 0 elements for an empty gradient
};

struct Plan {
  std::vector<std::vector<std::size_t>> buckets;  ///< gradient indices, in backward order
  std::vector<Slice> slices;                      ///< numbered 0..; slice ids of the exchange
  std::uint64_t hash = 0;                         ///< of everything above and of the inputs
};

struct PlanOptions {
  std::size_t bucket_bytes = 25u << 20;
  std::size_t slice_bytes = 1u << 20;
};

/// Walks the gradients in backward order (position descending, then index descending), fuses
/// neighbours of equal group up to bucket_bytes, and cuts each bucket into about equal slices of
/// about slice_bytes, inside a gradient at multiples of block_count only. No slice is larger than
/// 1.25 * slice_bytes plus two blocks (a gradient that is never cut counts as one block). Every
/// element is in exactly one segment. Deterministic. Error InvalidArgument for duplicate or empty
/// keys, negative positions, elements of 0 bytes, options of 0 bytes, sizes beyond std::size_t, and
/// more than 4,194,304 slices.
Plan make_plan(const std::vector<PlanInput>& gradients, const PlanOptions& options);

/// The plan as canonical text: a line for each gradient, bucket and slice. Plan::hash is its
/// FNV-1a/64 hash, equal on every machine.
std::string describe(const std::vector<PlanInput>& gradients, const Plan& plan);

/// Where two descriptions made by describe() differ first, for error messages: "mine: gradient
/// fc1.weight count=400000 ... | theirs: gradient fc1.weight count=400001 ...". Empty if they are
/// equal.
std::string first_difference(const std::string& mine, const std::string& theirs);

}  // namespace tersum::scheduler
