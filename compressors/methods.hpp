// The factories of the methods of this tree; registry.cpp lists them.
#pragma once

#include <memory>

#include "compressors/wire_ids.hpp"
#include "tersum/compressor.hpp"

namespace tersum::compressors {

/// Each reads its parameters; Error InvalidArgument for values out of range.
std::shared_ptr<const Compressor> make_none(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_float16(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_bfloat16(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_topk(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_randomk(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_qint(SpecParameters& parameters);
std::shared_ptr<const Compressor> make_sign(SpecParameters& parameters);

}  // namespace tersum::compressors
