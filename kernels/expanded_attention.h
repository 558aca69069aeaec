// Multi-head latent attention, expanded form, over the same paged latent cache
// as kernels/latent_attention.h.
#ifndef BATON_KERNELS_EXPANDED_ATTENTION_H_
#define BATON_KERNELS_EXPANDED_ATTENTION_H_

#include <span>

#include "kernels/cpu_context.h"
#include "kernels/latent_attention.h"
#include "kernels/linear.h"
#include "kernels/matrix_view.h"

namespace baton {

// output[r, h] = sum_t p_t (UV_h c_t), p = softmax_t(scale * (q_nope[r, h] .
// (UK_h c_t) + q_rope[r, h] . k_t)), t in [first_position, positions[r]], c and
// k read from the cache alone, the products with UK and UV as Linear gives
// them. Row r * heads + h of the matrices: q_nope [rows * heads, nope], q_rope
// [rows * heads, rope_dim], output [rows * heads, v]. Tiles, sums and merge are
// LatentAttention's; keys before first_position or past positions[r] are never
// read. A tile is expanded once for all neighbouring rows of a sequence, so few
// rows behind many keys are dear.
struct ExpandedAttentionArgs {
  CacheRows rows;
  int first_position = 0;  // At most any of rows.positions.
  int num_heads = 0;
  float scale = 0;
  MatrixView<const float> q_nope;
  MatrixView<const float> q_rope;
  std::span<const PackedWeight> key_up;    // UK of each head: [nope, latent]
  std::span<const PackedWeight> value_up;  // UV of each head: [v, latent]
  MatrixView<float> output;
};
void ExpandedAttention(const CpuContext& context,
                       const ExpandedAttentionArgs& args,
                       const LatentCache& cache);

}  // namespace baton

#endif  // BATON_KERNELS_EXPANDED_ATTENTION_H_
