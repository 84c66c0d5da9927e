// Error feedback and momentum correction around any compressor.
//
// Error feedback ("+ef"): Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019 (arXiv
// 1901.09847). With residual e:
//
//   p = g + e;   send C(p);   e' = p - C(p)
//
// so that gradient + residual_in = decoded + residual_out as exactly as fp32 allows.
//
// Momentum correction ("+momentum=m" with "+ef"): Lin et al., "Deep gradient compression", ICLR
// 2018 (arXiv 1712.01887), section 3. With velocity u and residual v:
//
//   u' = m u + g;   p = v + u';   send C(p);   v' = p - C(p);   u' = 0 where C(p) carries an
//   element
//
// The last step (factor masking) is for sparse methods only. The optimizer must not apply momentum
// of its own. Infinities and NaN are sent as they are, and leave 0 in residual and velocity.
#pragma once

#include <memory>
#include <optional>

#include "tersum/compressor.hpp"

namespace tersum::compressors {

/// `base` with error feedback, and with momentum correction if `momentum` (0 <= m < 1) is given.
/// Error InvalidArgument if feedback makes no sense for `base`: nothing is lost, or the error is
/// not contractive by construction (unbiased sparse methods scale up what they send).
std::shared_ptr<const Compressor> with_feedback(std::shared_ptr<const Compressor> base,
                                                std::optional<double> momentum);

}  // namespace tersum::compressors
