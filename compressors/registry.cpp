// The explicit list of all methods, registration from outside, and make_compressor().
#include <algorithm>
#include <charconv>
#include <mutex>
#include <optional>

#include "compressors/feedback.hpp"
#include "compressors/methods.hpp"
#include "compressors/spec.hpp"
#include "compressors/text.hpp"
#include "tersum/compressor.hpp"

namespace tersum {
namespace {

using namespace compressors;

// One line per method.
std::vector<CompressorEntry> built_in() {
  return {
      {"none", wire_id::kNone, "fp32 as it is", make_none},
      {"fp16", wire_id::kFloat16, "rounded to IEEE half precision", make_float16},
      {"bf16", wire_id::kBFloat16, "rounded to bfloat16", make_bfloat16},
      {"topk", wire_id::kTopK, "largest magnitudes; ratio (0.01) or k", make_topk},
      {"randomk", wire_id::kRandomK,
       "random elements, the same on all ranks; ratio (0.01) or k, scale=none|unbiased",
       make_randomk},
      {"qint", wire_id::kQInt,
       "integers with a scale per block; bits=2..8 (4), block (512), rounding=nearest|stochastic",
       make_qint},
      {"sign", wire_id::kSign, "sign and mean magnitude per block; block (512)", make_sign},
  };
}

struct Registry {
  std::mutex mutex;
  std::vector<CompressorEntry> entries = built_in();
};

Registry& registry() {
  static Registry instance;
  return instance;
}

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::shared_ptr<const Compressor> make_method(const ParsedSpec& parsed) {
  std::vector<std::string> names;
  for (const CompressorEntry& entry : compressor_entries()) {
    names.push_back(entry.name);
    if (entry.name != parsed.method) continue;
    SpecParameters parameters(parsed.method, parsed.values);
    auto method = entry.make(parameters);
    parameters.finish();
    if (!method) {
      throw Error(Code::Internal, "the factory of '" + entry.name + "' returned nothing");
    }
    return method;
  }
  throw Error(Code::InvalidArgument,
              "there is no method '" + parsed.method + "'" + suggestion(parsed.method, names));
}

double parse_momentum(const std::optional<std::string>& text) {
  double value = -1;
  if (text) {
    const auto result = std::from_chars(text->data(), text->data() + text->size(), value);
    if (result.ec != std::errc() || result.ptr != text->data() + text->size()) value = -1;
  }
  if (!(value >= 0 && value < 1)) {
    throw Error(Code::InvalidArgument, "momentum" + (text ? "=" + *text : std::string()) +
                                           " needs a number from 0 to below 1, as in "
                                           "'+ef+momentum=0.9'");
  }
  return value;
}

std::shared_ptr<const Compressor> decorate(std::shared_ptr<const Compressor> method,
                                           const ParsedSpec& parsed) {
  bool feedback = false;
  std::optional<double> momentum;
  for (const ParsedSpec::Decorator& decorator : parsed.decorators) {
    const bool is_feedback = decorator.name == "ef";
    if (!is_feedback && decorator.name != "momentum") {
      throw Error(Code::InvalidArgument, "there is no decorator '+" + decorator.name + "'" +
                                             suggestion(decorator.name, {"ef", "momentum"}));
    }
    if (is_feedback ? feedback : momentum.has_value()) {
      throw Error(Code::InvalidArgument, "decorator '+" + decorator.name + "' is given twice");
    }
    if (is_feedback && decorator.value) {
      throw Error(Code::InvalidArgument,
                  "decorator '+ef' takes no value; remove '=" + *decorator.value + "'");
    }
    if (is_feedback) {
      feedback = true;
    } else {
      momentum = parse_momentum(decorator.value);
    }
  }
  if (momentum && !feedback) {
    throw Error(Code::InvalidArgument,
                "'+momentum' corrects what error feedback delays; add '+ef' to use it");
  }
  return feedback ? with_feedback(std::move(method), momentum) : method;
}

}  // namespace

void register_compressor(CompressorEntry entry) {
  const auto refuse = [&](const std::string& what) {
    throw Error(Code::InvalidArgument, "cannot register compressor '" + entry.name + "': " + what);
  };
  if (!is_name(entry.name)) refuse("a name has letters, digits and '_' only");
  if (entry.wire_id < wire_id::kFirstOutOfTree) {
    refuse("wire id " + std::to_string(entry.wire_id) + " is reserved; take 0x8000 to 0xffff");
  }
  if (!entry.make) refuse("it has no factory");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const CompressorEntry& other : all.entries) {
    if (other.name == entry.name) refuse("the name is taken");
    if (other.wire_id == entry.wire_id) {
      refuse("wire id " + std::to_string(entry.wire_id) + " is taken by '" + other.name + "'");
    }
  }
  all.entries.push_back(std::move(entry));
}

std::vector<CompressorEntry> compressor_entries() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.entries;
}

std::shared_ptr<const Compressor> make_compressor(std::string_view spec) {
  const ParsedSpec parsed = parse_spec(spec);
  try {
    return decorate(make_method(parsed), parsed);
  } catch (const Error& error) {
    throw Error(error.code(),
                "compressor '" + std::string(spec) + "': " + error.status().message());
  }
}

}  // namespace tersum
