#include "collectives_cuda_options.hpp"

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "ranks_cuda.hpp"
#include "tersum/error.hpp"

namespace tersum::gpu {

namespace {

Algorithm parse_algorithm(const std::string& name) {
  for (const Algorithm algorithm :
       {Algorithm::Auto, Algorithm::Packets, Algorithm::PacketsTwoShot, Algorithm::Lines,
        Algorithm::LinesTwoShot, Algorithm::Push, Algorithm::PushTwoShot, Algorithm::CopyEngines}) {
    if (to_string(algorithm) == name) return algorithm;
  }
  refuse("no algorithm " + name);
}

Variant parse_variant(const std::string& text) {
  Variant variant;
  const auto colon = text.find(':');
  variant.name = text.substr(0, colon);
  if (colon == std::string::npos) return variant;
  for (const std::string& pair : split(text.substr(colon + 1), ',')) {
    const auto equals = pair.find('=');
    const std::string key = pair.substr(0, equals), value = pair.substr(equals + 1);
    PeerSettings& settings = variant.settings;
    if (key == "algorithm") {
      variant.algorithm = parse_algorithm(value);
      continue;
    }
    const auto number = [&] { return parse_count(value); };
    if (key == "early") {
      settings.early_launch = number() != 0;
    } else if (key == "push_blocks") {
      settings.push_blocks = number();
    } else if (key == "timeout_ms") {
      settings.timeout = std::chrono::milliseconds(number());
    } else if (key == "cell_blocks") {
      settings.cell_blocks = number();
    } else if (key == "push_lead") {
      settings.push_lead = number();
    } else if (key == "slot_bytes") {
      settings.slot_bytes = parse_bytes(value);
    } else if (key == "slots") {
      settings.slots = number();
    } else if (key == "staging_bytes") {
      settings.staging_bytes = parse_bytes(value);
    } else if (key == "head_bytes") {
      settings.head_bytes = parse_bytes(value);
    } else if (key == "staging_blocks") {
      settings.staging_blocks = number();
    } else {
      refuse("no setting " + key);
    }
  }
  return variant;
}

DType parse_dtype(const std::string& name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (to_string(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  refuse("no dtype " + name);
}

}  // namespace

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--eager") {
      options.eager = true;
      continue;
    }
    if (i + 1 == argc) refuse(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--ranks") {
      options.ranks = parse_count(value);
    } else if (name == "--min") {
      options.min_bytes = parse_bytes(value);
    } else if (name == "--max") {
      options.max_bytes = parse_bytes(value);
    } else if (name == "--factor") {
      options.factor = std::max(2, parse_count(value));
    } else if (name == "--graph-ops") {
      options.graph_ops = parse_count(value);
    } else if (name == "--repeats") {
      options.repeats = parse_count(value);
    } else if (name == "--compare") {
      options.nccl = parse_rival(value);
    } else if (name == "--nccl-library") {
      options.nccl_library = value;
    } else if (name == "--collectives") {
      options.collectives = split(value, ',');
    } else if (name == "--dtype") {
      options.dtype = parse_dtype(value);
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--variant") {
      options.variants.push_back(parse_variant(value));
    } else {
      refuse("no option " + name);
    }
  }
  if (options.variants.empty()) options.variants.emplace_back();
  return options;
}

}  // namespace tersum::gpu
