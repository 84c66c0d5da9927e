// A compression method that lives outside Tersum's tree.
#pragma once

#include <tersum/compressor.hpp>

namespace example {

/// Entry of "threshold:tau=0.001" for tersum::register_compressor().
tersum::CompressorEntry threshold_entry();

}  // namespace example
