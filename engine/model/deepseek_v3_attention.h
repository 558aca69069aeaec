// Multi-head latent attention of the model, as equations over kernels.
#ifndef BATON_ENGINE_MODEL_DEEPSEEK_V3_ATTENTION_H_
#define BATON_ENGINE_MODEL_DEEPSEEK_V3_ATTENTION_H_

#include <span>

#include "engine/model/deepseek_v3.h"
#include "engine/model/deepseek_v3_weights.h"
#include "kernels/latent_attention.h"
#include "kernels/matrix_view.h"

namespace baton {

// The rows of a step that are still being worked on.
struct LayerRows {
  CacheRows cache;
  std::span<const AttentionForm> forms;
  int first_position = 0;    // Of the slots in use; position 0 of rope.
  MatrixView<float> x;       // [rows, hidden], the residual stream.
  MatrixView<float> normed;  // [rows, hidden], input of the sub-layer.
  MatrixView<float> down;    // [rows, q_lora + kv_lora + rope], from normed.
};

// down = W normed; its latent and rope key go to the cache.
void WriteCache(const ForwardContext& context, const LayerRows& rows,
                const AttentionWeights& weights, const LatentCache& cache);

// Multi-head latent attention over the cache, which holds these rows: each row
// in its form. output = MLA(normed).
void Attend(const ForwardContext& context, const LayerRows& rows,
            const AttentionWeights& weights, const LatentCache& cache,
            MatrixView<float> output);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_DEEPSEEK_V3_ATTENTION_H_
