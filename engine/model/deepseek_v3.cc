#include "engine/model/deepseek_v3.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "engine/model/rope.h"
#include "kernels/route_experts.h"

namespace baton {
namespace {

// Columns [first, first + cols) of a matrix.
template <typename T>
MatrixView<T> Columns(MatrixView<T> matrix, int first, int cols) {
  return {matrix.data + first, matrix.rows, cols, matrix.stride};
}

template <typename T>
MatrixView<T> Rows(MatrixView<T> matrix, int first, int rows) {
  return {matrix.row(first), rows, matrix.cols, matrix.stride};
}

// The heads' parts of a dense [rows, heads * width] as [rows * heads, width].
template <typename T>
MatrixView<T> SplitHeads(MatrixView<T> matrix, int num_heads) {
  const int width = matrix.cols / num_heads;
  return {matrix.data, matrix.rows * num_heads, width, width};
}

size_t ElementBytes(CacheDtype dtype) {
  return dtype == CacheDtype::kF32 ? sizeof(float) : sizeof(uint16_t);
}

// One step's rows.
struct StepRows {
  int num_rows = 0;
  CacheRows cache;
};

// q_nope . UK of each head, and the rotated q_rope, from x normed.
struct Queries {
  MatrixView<const float> latent;  // [rows * heads, kv_lora]
  MatrixView<const float> rope;    // [rows * heads, rope]
};

// `down` holds the first projection of the rows; its q part is normed here.
Queries ProjectQueries(const ForwardContext& context, const StepRows& rows,
                       const AttentionWeights& weights,
                       MatrixView<const float> normed, MatrixView<float> down) {
  const ModelConfig& config = context.model->config;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const int heads = config.num_heads;
  const MatrixView<float> query =
      Dense(buffers.query.data(), rows.num_rows, config.q_dim());
  if (config.q_lora_rank > 0) {
    const MatrixView<float> q_down = Columns(down, 0, config.q_lora_rank);
    RmsNorm(*context.cpu, q_down, weights.q_norm.data(), config.rms_norm_eps,
            q_down);
    Linear(*context.cpu, {q_down, &weights.query, query});
  } else {
    Linear(*context.cpu, {normed, &weights.query, query});
  }
  const MatrixView<float> by_head = SplitHeads(query, heads);
  const MatrixView<float> rope =
      Columns(by_head, config.nope_dim, config.rope_dim);
  ApplyRope(*context.cpu, rope, rows.cache.positions, heads,
            context.model->rope_tables());
  const MatrixView<float> latent = Dense(buffers.q_latent.data(), rows.num_rows,
                                         heads * config.kv_lora_rank);
  buffers.tasks.clear();
  for (int h = 0; h < heads; ++h) {
    buffers.tasks.push_back(
        {Columns(query, h * (config.nope_dim + config.rope_dim),
                 config.nope_dim),
         &weights.key_up[h],
         Columns(latent, h * config.kv_lora_rank, config.kv_lora_rank)});
  }
  LinearBatch(*context.cpu, buffers.tasks);
  return {SplitHeads(latent, heads), rope};
}

// Multi-head latent attention, absorbed: scores and sums live in the latent
// space of the cache. output = MLA(normed).
void Attend(const ForwardContext& context, const StepRows& rows,
            const AttentionWeights& weights, const LatentCache& cache,
            MatrixView<const float> normed, MatrixView<float> output) {
  const ModelConfig& config = context.model->config;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const int latent_dim = config.kv_lora_rank;
  const MatrixView<float> down =
      Dense(buffers.down.data(), rows.num_rows, weights.down.out());
  Linear(*context.cpu, {normed, &weights.down, down});
  const MatrixView<float> latent =
      Columns(down, config.q_lora_rank, latent_dim);
  const MatrixView<float> rope_key =
      Columns(down, config.q_lora_rank + latent_dim, config.rope_dim);
  RmsNorm(*context.cpu, latent, weights.kv_norm.data(), config.rms_norm_eps,
          latent);
  ApplyRope(*context.cpu, rope_key, rows.cache.positions, 1,
            context.model->rope_tables());
  WriteLatentCache(*context.cpu, rows.cache, latent, rope_key, cache);

  const Queries queries = ProjectQueries(context, rows, weights, normed, down);
  const MatrixView<float> z =
      Dense(buffers.z.data(), rows.num_rows, config.num_heads * latent_dim);
  LatentAttention(*context.cpu,
                  {.rows = rows.cache,
                   .num_heads = config.num_heads,
                   .scale = context.model->softmax_scale,
                   .q_latent = queries.latent,
                   .q_rope = queries.rope,
                   .z = SplitHeads(z, config.num_heads)},
                  cache);
  const MatrixView<float> heads = Dense(buffers.heads.data(), rows.num_rows,
                                        config.num_heads * config.v_dim);
  buffers.tasks.clear();
  for (int h = 0; h < config.num_heads; ++h) {
    buffers.tasks.push_back({Columns(z, h * latent_dim, latent_dim),
                             &weights.value_up[h],
                             Columns(heads, h * config.v_dim, config.v_dim)});
  }
  LinearBatch(*context.cpu, buffers.tasks);
  Linear(*context.cpu, {heads, &weights.output, output});
}

// gate = silu(gate) * up, where gate_up is [gate | up]; gives gate.
MatrixView<const float> Activate(const CpuContext& cpu,
                                 MatrixView<float> gate_up) {
  const int width = gate_up.cols / 2;
  const MatrixView<float> gate = Columns(gate_up, 0, width);
  SiluMul(cpu, gate, Columns(gate_up, width, width), gate);
  return gate;
}

// output = W2(silu(W1 x) * W3 x).
void DenseMlp(const ForwardContext& context, const MlpWeights& weights,
              MatrixView<const float> x, MatrixView<float> output) {
  const MatrixView<float> gate_up =
      Dense(context.workspace->gate_up.data(), x.rows, weights.gate_up.out());
  Linear(*context.cpu, {x, &weights.gate_up, gate_up});
  Linear(*context.cpu,
         {Activate(*context.cpu, gate_up), &weights.down, output});
}

// rows.outputs = each expert's MLP of its rows; shared_output = the shared
// expert's MLP of x, or 0: one fork and join for each half of all of them.
void RunExperts(const ForwardContext& context, const MoeWeights& weights,
                const ExpertRows& rows, MatrixView<const float> x,
                MatrixView<float> shared_output) {
  const CpuContext& cpu = *context.cpu;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const int expert_cols = 2 * context.model->config.experts->intermediate_size;
  const MatrixView<float> gate_up =
      Dense(buffers.expert_gate_up.data(), rows.inputs.rows, expert_cols);
  const MatrixView<float> shared_gate_up =
      Dense(buffers.gate_up.data(), x.rows, weights.shared.gate_up.out());
  const bool has_shared = weights.shared.width() > 0;

  buffers.tasks.clear();
  if (has_shared) {
    buffers.tasks.push_back({x, &weights.shared.gate_up, shared_gate_up});
  }
  const auto for_experts_with_rows = [&](auto&& add_task) {
    for (size_t e = 0; e < weights.experts.size(); ++e) {
      const int first = rows.offsets[e];
      const int num = rows.offsets[e + 1] - first;
      if (num > 0) add_task(weights.experts[e], first, num);
    }
  };
  for_experts_with_rows([&](const MlpWeights& expert, int first, int num) {
    buffers.tasks.push_back({Rows(rows.inputs, first, num), &expert.gate_up,
                             Rows(gate_up, first, num)});
  });
  LinearBatch(cpu, buffers.tasks);

  const MatrixView<const float> active = Activate(cpu, gate_up);
  buffers.tasks.clear();
  if (has_shared) {
    buffers.tasks.push_back(
        {Activate(cpu, shared_gate_up), &weights.shared.down, shared_output});
  } else {
    for (int r = 0; r < shared_output.rows; ++r) {
      std::fill_n(shared_output.row(r), shared_output.cols, 0.0f);
    }
  }
  for_experts_with_rows([&](const MlpWeights& expert, int first, int num) {
    buffers.tasks.push_back({Rows(active, first, num), &expert.down,
                             Rows(rows.outputs, first, num)});
  });
  LinearBatch(cpu, buffers.tasks);
}

// output = Shared(x) + sum over the chosen experts, in order of choice.
void MixtureOfExperts(const ForwardContext& context, const MoeWeights& weights,
                      MatrixView<const float> x, MatrixView<float> output) {
  const CpuContext& cpu = *context.cpu;
  const ExpertsConfig& config = *context.model->config.experts;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const MatrixView<float> router_logits =
      Dense(buffers.router_logits.data(), x.rows, config.num_routed);
  Linear(cpu, {x, &weights.router, router_logits});
  RoutingOptions routing = config.routing;
  routing.bias =
      weights.router_bias.empty() ? nullptr : weights.router_bias.data();
  const MatrixView<int32_t> experts =
      Dense(buffers.experts.data(), x.rows, routing.top_k);
  const MatrixView<float> expert_weights =
      Dense(buffers.expert_weights.data(), x.rows, routing.top_k);
  RouteExperts(cpu, routing, router_logits, experts, expert_weights);

  const ExpertRows rows = context.dispatch->Dispatch(x, experts);
  RunExperts(context, weights, rows, x, output);
  const MatrixView<float> routed =
      Dense(buffers.routed.data(), x.rows * routing.top_k, x.cols);
  context.dispatch->Combine(routed);
  CombineExperts(cpu, output, routed, expert_weights, output);
}

// The rows whose logits are wanted, normed, times the head.
void ProjectLogits(const ForwardContext& context,
                   std::span<const int32_t> logits_rows,
                   MatrixView<const float> residual, MatrixView<float> logits) {
  const ModelConfig& config = context.model->config;
  const DeepSeekV3Weights& weights = context.model->weights;
  if (logits_rows.empty()) return;
  const MatrixView<float> wanted =
      Dense(context.workspace->logits_residual.data(),
            static_cast<int>(logits_rows.size()), config.hidden_size);
  for (int i = 0; i < wanted.rows; ++i) {
    std::copy_n(residual.row(logits_rows[i]), residual.cols, wanted.row(i));
  }
  RmsNorm(*context.cpu, wanted, weights.norm.data(), config.rms_norm_eps,
          wanted);
  Linear(*context.cpu, {wanted, &weights.head, logits});
}

StepRows PrepareRows(const ForwardBatch& batch, DeepSeekV3Workspace* buffers) {
  const int num_rows = static_cast<int>(batch.token_ids.size());
  for (const SequenceRows& sequence : batch.sequences) {
    DCHECK(sequence.first_row + sequence.num_rows <= num_rows);
    std::fill_n(buffers->block_tables.begin() + sequence.first_row,
                sequence.num_rows, sequence.block_table);
  }
  return {num_rows,
          {batch.positions,
           std::span(buffers->block_tables.data(), batch.token_ids.size())}};
}

}  // namespace

RopeTables DeepSeekV3Model::rope_tables() const {
  const int pairs = config.rope_dim / 2;
  const int positions = static_cast<int>(rope_cos.size()) / pairs;
  return {Dense(rope_cos.data(), positions, pairs),
          Dense(rope_sin.data(), positions, pairs)};
}

DeepSeekV3Model MakeModel(const ModelConfig& config, DeepSeekV3Weights weights,
                          int max_positions) {
  DeepSeekV3Model model;
  model.config = config;
  model.weights = std::move(weights);
  model.softmax_scale = SoftmaxScale(config);
  const int pairs = config.rope_dim / 2;
  model.rope_cos.resize(static_cast<size_t>(max_positions) * pairs);
  model.rope_sin.resize(static_cast<size_t>(max_positions) * pairs);
  FillRopeTables(RopeFrequencies(config), RopeAmplitude(config),
                 Dense(model.rope_cos.data(), max_positions, pairs),
                 Dense(model.rope_sin.data(), max_positions, pairs));
  return model;
}

DeepSeekV3Workspace::DeepSeekV3Workspace(const ModelConfig& config,
                                         int max_rows, int max_logits_rows) {
  const size_t rows = max_rows;
  const size_t heads_rows = rows * config.num_heads;
  block_tables.resize(rows);
  residual.resize(rows * config.hidden_size);
  normed.resize(rows * config.hidden_size);
  down.resize(rows *
              (config.q_lora_rank + config.kv_lora_rank + config.rope_dim));
  query.resize(rows * config.q_dim());
  q_latent.resize(heads_rows * config.kv_lora_rank);
  z.resize(heads_rows * config.kv_lora_rank);
  heads.resize(heads_rows * config.v_dim);
  output.resize(rows * config.hidden_size);
  size_t mlp_width = config.intermediate_size;
  tasks.reserve(config.num_heads);
  if (config.experts.has_value()) {
    const ExpertsConfig& moe = *config.experts;
    const size_t width = moe.intermediate_size;
    const size_t top_k = moe.routing.top_k;
    mlp_width = std::max(mlp_width, moe.num_shared * width);
    router_logits.resize(rows * moe.num_routed);
    experts.resize(rows * top_k);
    expert_weights.resize(rows * top_k);
    expert_gate_up.resize(rows * top_k * 2 * width);
    routed.resize(rows * top_k * config.hidden_size);
    tasks.reserve(std::max(config.num_heads, moe.num_routed + 1));
  }
  gate_up.resize(rows * 2 * mlp_width);
  logits_residual.resize(static_cast<size_t>(max_logits_rows) *
                         config.hidden_size);
}

size_t LatentLayerBytes(const ModelConfig& config, CacheDtype dtype) {
  return static_cast<size_t>(kKvBlockTokens) *
         (config.kv_lora_rank + config.rope_dim) * ElementBytes(dtype);
}

void Forward(const ForwardContext& context, const ForwardBatch& batch,
             MatrixView<float> logits) {
  const CpuContext& cpu = *context.cpu;
  const ModelConfig& config = context.model->config;
  const DeepSeekV3Weights& weights = context.model->weights;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const StepRows rows = PrepareRows(batch, &buffers);
  const auto matrix = [&](std::vector<float>& buffer) {
    return Dense(buffer.data(), rows.num_rows, config.hidden_size);
  };
  const MatrixView<float> x = matrix(buffers.residual);
  const MatrixView<float> normed = matrix(buffers.normed);
  const MatrixView<float> y = matrix(buffers.output);

  for (int r = 0; r < rows.num_rows; ++r) {
    DCHECK(batch.token_ids[r] < static_cast<uint32_t>(config.vocab_size));
    weights.embedding.CopyRow(static_cast<int>(batch.token_ids[r]), x.row(r));
  }
  LatentCache cache = context.cache;
  for (const LayerWeights& layer : weights.layers) {
    RmsNorm(cpu, x, layer.attention_norm.data(), config.rms_norm_eps, normed);
    Attend(context, rows, layer.attention, cache, normed, y);
    AddInPlace(cpu, x, y);
    RmsNorm(cpu, x, layer.mlp_norm.data(), config.rms_norm_eps, normed);
    if (layer.moe.experts.empty()) {
      DenseMlp(context, layer.dense, normed, y);
    } else {
      MixtureOfExperts(context, layer.moe, normed, y);
    }
    AddInPlace(cpu, x, y);
    cache.layer_offset_bytes += LatentLayerBytes(config, cache.dtype);
  }
  ProjectLogits(context, batch.logits_rows, x, logits);
}

}  // namespace baton
