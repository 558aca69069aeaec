#include "engine/model/deepseek_v3_attention.h"

#include "kernels/elementwise.h"
#include "kernels/expanded_attention.h"
#include "kernels/linear.h"

namespace baton {
namespace {

// The heads' parts of a dense [rows, heads * width] as [rows * heads, width].
template <typename T>
MatrixView<T> SplitHeads(MatrixView<T> matrix, int num_heads) {
  const int width = matrix.cols / num_heads;
  return {matrix.data, matrix.rows * num_heads, width, width};
}

std::span<const int32_t> RopePositions(const LayerRows& rows,
                                       DeepSeekV3Workspace* buffers) {
  const std::span<const int32_t> slots = rows.cache.positions;
  if (rows.first_position == 0) return slots;
  for (size_t r = 0; r < slots.size(); ++r) {
    buffers->rope_positions[r] = slots[r] - rows.first_position;
  }
  return std::span(buffers->rope_positions).first(slots.size());
}

// [q_nope | q_rope] of each head, the latter rotated, from x normed: [rows,
// heads * (nope + rope)].
MatrixView<const float> ProjectQueries(const ForwardContext& context,
                                       const LayerRows& rows,
                                       const AttentionWeights& weights) {
  const ModelConfig& config = context.model->config;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const int heads = config.num_heads;
  const MatrixView<float> query =
      Dense(buffers.query.data(), rows.x.rows, config.q_dim());
  if (config.q_lora_rank > 0) {
    const MatrixView<float> q_down = Columns(rows.down, 0, config.q_lora_rank);
    RmsNorm(*context.cpu, q_down, weights.q_norm.data(), config.rms_norm_eps,
            q_down);
    Linear(*context.cpu, {q_down, &weights.query, query});
  } else {
    Linear(*context.cpu, {rows.normed, &weights.query, query});
  }
  ApplyRope(*context.cpu,
            Columns(SplitHeads(query, heads), config.nope_dim, config.rope_dim),
            RopePositions(rows, &buffers), heads, context.model->rope_tables());
  return query;
}

// Rows that follow each other and have one form.
struct FormRows {
  CacheRows cache;
  int first_position;
  MatrixView<const float> query;  // As ProjectQueries gives it.
  MatrixView<float> heads;        // [rows, heads * v], the result.
};

// Scores and sums live in the latent space: q_nope goes through UK before, the
// sum through UV behind.
void AttendAbsorbed(const ForwardContext& context, const FormRows& rows,
                    const AttentionWeights& weights, const LatentCache& cache) {
  const ModelConfig& config = context.model->config;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const int heads = config.num_heads;
  const int latent_dim = config.kv_lora_rank;
  const MatrixView<float> q_latent =
      Dense(buffers.q_latent.data(), rows.query.rows, heads * latent_dim);
  buffers.tasks.clear();
  for (int h = 0; h < heads; ++h) {
    buffers.tasks.push_back(
        {Columns(rows.query, h * (config.nope_dim + config.rope_dim),
                 config.nope_dim),
         &weights.key_absorb[h],
         Columns(q_latent, h * latent_dim, latent_dim)});
  }
  LinearBatch(*context.cpu, buffers.tasks);
  const MatrixView<float> z =
      Dense(buffers.z.data(), rows.query.rows, heads * latent_dim);
  LatentAttention(*context.cpu,
                  {.rows = rows.cache,
                   .first_position = rows.first_position,
                   .num_heads = heads,
                   .scale = context.model->softmax_scale,
                   .q_latent = SplitHeads(q_latent, heads),
                   .q_rope = Columns(SplitHeads(rows.query, heads),
                                     config.nope_dim, config.rope_dim),
                   .z = SplitHeads(z, heads)},
                  cache);
  buffers.tasks.clear();
  for (int h = 0; h < heads; ++h) {
    buffers.tasks.push_back(
        {Columns(z, h * latent_dim, latent_dim), &weights.value_up[h],
         Columns(rows.heads, h * config.v_dim, config.v_dim)});
  }
  LinearBatch(*context.cpu, buffers.tasks);
}

void AttendExpanded(const ForwardContext& context, const FormRows& rows,
                    const AttentionWeights& weights, const LatentCache& cache) {
  const ModelConfig& config = context.model->config;
  const int heads = config.num_heads;
  const MatrixView<const float> query = SplitHeads(rows.query, heads);
  ExpandedAttention(*context.cpu,
                    {.rows = rows.cache,
                     .first_position = rows.first_position,
                     .num_heads = heads,
                     .scale = context.model->softmax_scale,
                     .q_nope = Columns(query, 0, config.nope_dim),
                     .q_rope = Columns(query, config.nope_dim, config.rope_dim),
                     .key_up = weights.key_up,
                     .value_up = weights.value_up,
                     .output = SplitHeads(rows.heads, heads)},
                    cache);
}

}  // namespace

void WriteCache(const ForwardContext& context, const LayerRows& rows,
                const AttentionWeights& weights, const LatentCache& cache) {
  const ModelConfig& config = context.model->config;
  Linear(*context.cpu, {rows.normed, &weights.down, rows.down});
  const MatrixView<float> latent =
      Columns(rows.down, config.q_lora_rank, config.kv_lora_rank);
  const MatrixView<float> rope_key = Columns(
      rows.down, config.q_lora_rank + config.kv_lora_rank, config.rope_dim);
  RmsNorm(*context.cpu, latent, weights.kv_norm.data(), config.rms_norm_eps,
          latent);
  ApplyRope(*context.cpu, rope_key, RopePositions(rows, context.workspace), 1,
            context.model->rope_tables());
  WriteLatentCache(*context.cpu, rows.cache, latent, rope_key, cache);
}

void Attend(const ForwardContext& context, const LayerRows& rows,
            const AttentionWeights& weights, const LatentCache& cache,
            MatrixView<float> output) {
  const ModelConfig& config = context.model->config;
  const MatrixView<const float> query = ProjectQueries(context, rows, weights);
  const MatrixView<float> heads =
      Dense(context.workspace->heads.data(), rows.x.rows,
            config.num_heads * config.v_dim);
  for (int first = 0, end = 0; first < rows.x.rows; first = end) {
    const AttentionForm form = rows.forms[first];
    while (end < rows.x.rows && rows.forms[end] == form) ++end;
    const int num = end - first;
    const FormRows part = {
        .cache = {rows.cache.positions.subspan(first, num),
                  rows.cache.block_tables.subspan(first, num)},
        .first_position = rows.first_position,
        .query = Rows(query, first, num),
        .heads = Rows(heads, first, num)};
    if (form == AttentionForm::kExpanded) {
      AttendExpanded(context, part, weights, cache);
    } else {
      AttendAbsorbed(context, part, weights, cache);
    }
  }
  Linear(*context.cpu, {heads, &weights.output, output});
}

}  // namespace baton
