#include "conformance/compressors_support.hpp"

#include <algorithm>
#include <cctype>
#include <mutex>

#include "out_of_tree/threshold/threshold.hpp"

namespace tersum::test {
namespace {

// Parameters beyond the defaults, which come from the registry.
const char* const kVariants[] = {
    "topk:k=1",
    "topk:ratio=0.2",
    "topk:ratio=1",
    "randomk:k=1",
    "randomk:ratio=0.3",
    "randomk:ratio=0.3,scale=unbiased",
    "qint:bits=2",
    "qint:bits=3,block=32",
    "qint:bits=5,block=96",
    "qint:bits=6,block=2048",
    "qint:bits=7",
    "qint:bits=8,block=128",
    "qint:bits=2,block=64,rounding=stochastic",
    "qint:bits=4,rounding=stochastic",
    "qint:bits=8,block=1504,rounding=stochastic",
    "sign:block=32",
    "sign:block=4096",
};

bool accepted(const std::string& spec) {
  try {
    make_compressor(spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> all_specs() {
  static std::once_flag registered;
  std::call_once(registered, [] { register_compressor(example::threshold_entry()); });
  std::vector<std::string> plain;
  for (const CompressorEntry& entry : compressor_entries()) plain.push_back(entry.name);
  plain.insert(plain.end(), std::begin(kVariants), std::end(kVariants));
  std::vector<std::string> specs;
  for (const std::string& spec : plain) {
    for (const char* decorators : {"", "+ef", "+ef+momentum=0.9"}) {
      if (*decorators == '\0' || accepted(spec + decorators)) specs.push_back(spec + decorators);
    }
  }
  return specs;
}

std::string test_name(const std::string& spec) {
  std::string name = spec;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace tersum::test
