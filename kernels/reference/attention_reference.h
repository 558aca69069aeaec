// Latent attention in double precision, over plain rows.
#ifndef BATON_KERNELS_REFERENCE_ATTENTION_REFERENCE_H_
#define BATON_KERNELS_REFERENCE_ATTENTION_REFERENCE_H_

#include <vector>

#include "kernels/matrix_view.h"

namespace baton {

// One query over keys [num_keys, latent + rope]: sum of softmax weights times
// the latent part.
std::vector<double> ReferenceLatentAttention(const std::vector<float>& q_latent,
                                             const std::vector<float>& q_rope,
                                             MatrixView<const float> keys,
                                             double scale);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_ATTENTION_REFERENCE_H_
