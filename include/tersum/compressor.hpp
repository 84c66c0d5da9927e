// The interface of a compression method, its declaration of properties, and the public registration
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersum/error.hpp"
#include "tersum/types.hpp"

namespace tersum {

/// What is known of the error of one compression (reference: docs/compressors.md).
enum class Bias : std::uint8_t {
  Unbiased,     ///< E[C(x)] = x
  Contractive,  ///< ||C(x) - x||^2 <= (1 - delta) ||x||^2 with delta > 0: converges with error
                ///< feedback
  Neither,
};

/// How the payloads of all ranks become one result.
enum class Aggregation : std::uint8_t {
  Linear,       ///< the sum of payload bodies is the body of the sum: any dense all-reduce
  Recompress,   ///< decode-add at the owner of a shard, encode again, all-gather
  SparseMerge,  ///< all-gather of payloads, decode-add in rank order
};

/// Constant properties of a method with its parameters. The conformance suite tests every one of
/// them.
struct CompressorTraits {
  std::string_view name;          ///< method name in specs: "topk"
  std::uint16_t wire_id = 0;      ///< in every payload header; never reused
  std::uint8_t wire_version = 1;  ///< layout version, in every payload header
  Bias bias = Bias::Neither;
  Aggregation aggregation = Aggregation::Recompress;
  /// A gradient may be cut at multiples of this many elements without changing any result;
  /// 0: the method sees a whole gradient at once and it is never cut.
  std::size_t block_count = 1;
  bool fixed_size = true;   ///< compress() always returns max_payload_bytes(count)
  bool randomised = false;  ///< draws from the counter generator keyed by SliceContext
  bool sparse = false;      ///< most decoded elements are exactly zero; clear_sent() works
  DType payload_dtype = DType::Float32;  ///< Linear only: element type of the body that is summed
};

/// Which elements are compressed, when and by whom: the key of every random draw, so that runs
/// repeat, slices do not matter, and device twins agree.
struct SliceContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t key = 0;     ///< hash of the gradient's name
  std::uint64_t offset = 0;  ///< position of the first element inside its gradient, in elements
  std::uint32_t rank = 0;  ///< who encodes; kReducerRank when the owner of a shard encodes the sum
};
inline constexpr std::uint32_t kReducerRank = 0xffffffffu;

/// Mutable data of one gradient under one compressor (residuals, momenta). Owned by the gradient
/// exchange. What compress() writes is provisional until commit(); rollback() forgets it.
class CompressorState {
 public:
  virtual ~CompressorState() = default;
  virtual void commit() noexcept = 0;
  virtual void rollback() noexcept = 0;
  /// Committed values as bytes, and back. load() throws Error InvalidArgument if `bytes` is not of
  /// this shape.
  virtual std::vector<std::byte> save() const = 0;
  virtual void load(std::span<const std::byte> bytes) = 0;
};

/// An immutable compression method with its parameters: shared, re-entrant, callable from any
/// thread. It works on fp32; gradients of other floating types are converted on the way in and out.
class Compressor {
 public:
  virtual ~Compressor() = default;

  virtual const CompressorTraits& traits() const noexcept = 0;

  /// Canonical spec with all parameters: "topk:ratio=0.01+ef". Parsing it gives an equal
  /// compressor.
  virtual std::string spec() const = 0;

  /// Upper bound of the payload of `count` elements, header included; holds for every count, 0 and
  /// 1 included.
  virtual std::size_t max_payload_bytes(std::size_t count) const = 0;

  /// State for a gradient of `count` elements, or null when the method has none.
  virtual std::unique_ptr<CompressorState> make_state(std::size_t count) const;

  /// Encodes `input` ([count]) into `payload` (at least max_payload_bytes(count), 8-byte aligned)
  /// and returns the bytes written. `state` is what make_state() gave for the whole gradient (null
  /// if null), used from element context.offset on. Calls for disjoint parts of one gradient may
  /// run at the same time. Does not allocate; `input` is not changed.
  virtual std::size_t compress(std::span<const float> input, const SliceContext& context,
                               CompressorState* state, std::span<std::byte> payload) const = 0;

  /// Decodes a payload of exactly output.size() elements into `output`. The bytes are not trusted:
  /// Error Protocol if they cannot be a payload of this method for this count.
  virtual void decompress(std::span<const std::byte> payload, const SliceContext& context,
                          std::span<float> output) const = 0;

  /// accumulator += scale * decoded; otherwise as decompress(). Throws before it has changed
  /// anything.
  virtual void decompress_add(std::span<const std::byte> payload, const SliceContext& context,
                              float scale, std::span<float> accumulator) const = 0;

  /// Sparse methods: sets values[i] = 0 for every element i that the payload carries. Others: does
  /// nothing.
  virtual void clear_sent(std::span<const std::byte> payload, const SliceContext& context,
                          std::span<float> values) const;

  /// The compressor with which the owner of a shard encodes the sum (Recompress): the method
  /// itself, with error feedback of its own when this one has feedback and is biased. Null: this
  /// object itself.
  virtual std::shared_ptr<const Compressor> reducer() const;
};

inline std::unique_ptr<CompressorState> Compressor::make_state(std::size_t) const {
  return nullptr;
}
inline void Compressor::clear_sent(std::span<const std::byte>, const SliceContext&,
                                   std::span<float>) const {}
inline std::shared_ptr<const Compressor> Compressor::reducer() const {
  return nullptr;
}

/// Parameters of one method in a spec ("ratio" -> "0.01"), as typed values. Every get names key,
/// type, default and range; finish() reports keys that nobody asked for, naming the nearest known
/// one.
class SpecParameters {
 public:
  SpecParameters(std::string method, std::map<std::string, std::string> values)
      : method_(std::move(method)), values_(std::move(values)) {}

  double get_double(const std::string& key, double default_value, double minimum, double maximum);
  std::int64_t get_integer(const std::string& key, std::int64_t default_value, std::int64_t minimum,
                           std::int64_t maximum);
  /// True if the spec gives `key`; does not count as asking for it.
  bool has(const std::string& key) const { return values_.count(key) != 0; }
  /// One of `choices`.
  std::string get_choice(const std::string& key, const std::string& default_value,
                         const std::vector<std::string>& choices);
  /// Throws Error InvalidArgument if the spec holds a key that was not asked for.
  void finish() const;

 private:
  std::string method_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
};

/// What the registry knows of a method.
struct CompressorEntry {
  std::string name;       ///< in specs; letters, digits, '_'
  std::uint16_t wire_id;  ///< unique; 0x8000 and above are free for methods outside this tree
  std::string help;       ///< one line for tersum-info and docs: what it does, its parameters
  std::function<std::shared_ptr<const Compressor>(SpecParameters&)> make;
};

/// Adds a method from outside this tree; call it before a communicator is created. Error
/// InvalidArgument if the name or the wire id is taken. Thread-safe.
void register_compressor(CompressorEntry entry);

/// All methods: built in, then registered, each in order.
std::vector<CompressorEntry> compressor_entries();

/// The compressor of a spec: "method:key=value,...+decorator[=value]...". Error InvalidArgument
/// names what is wrong, where, and the nearest right word.
std::shared_ptr<const Compressor> make_compressor(std::string_view spec);

/// Every payload starts with this header (little-endian, 16 bytes), checked before anything is
/// decoded.
struct PayloadHeader {
  std::uint16_t wire_id;
  std::uint8_t wire_version;
  std::uint8_t flags;        ///< method-defined
  std::uint32_t body_bytes;  ///< bytes after the header
  std::uint64_t count;       ///< elements that the payload decodes to
};
static_assert(sizeof(PayloadHeader) == 16);

}  // namespace tersum
