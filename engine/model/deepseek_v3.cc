#include "engine/model/deepseek_v3.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "engine/model/deepseek_v3_attention.h"
#include "engine/model/rope.h"
#include "kernels/route_experts.h"

namespace baton {
namespace {

// A layer as a step finds it.
struct StepLayer {
  const LayerWeights& weights;
  const LatentCache& cache;
  // All of a layer with experts, as one among those. Rows by slot; empty: not
  // wanted.
  size_t expert_layer = 0;
  const ExpertSlots* slots = nullptr;
  std::span<uint32_t> expert_rows = {};
};

size_t ElementBytes(CacheDtype dtype) {
  return dtype == CacheDtype::kF32 ? sizeof(float) : sizeof(uint16_t);
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

// Rows or none: what a slot is said to hold is known before they come.
void CheckResident(const StepLayer& layer, std::span<const uint32_t> experts) {
  for (const uint32_t expert : experts) {
    CHECK(layer.weights.moe.experts.Find(expert) != nullptr)
        << "expert " << expert << " of expert layer " << layer.expert_layer
        << " has a slot here, but is not in memory";
  }
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
      Dense(buffers.expert_gate_up.get(), rows.inputs.rows, expert_cols);
  const MatrixView<float> shared_gate_up =
      Dense(buffers.gate_up.data(), x.rows, weights.shared.gate_up.out());
  const bool has_shared = weights.shared.width() > 0;

  buffers.tasks.clear();
  if (has_shared) {
    buffers.tasks.push_back({x, &weights.shared.gate_up, shared_gate_up});
  }
  const auto for_experts_with_rows = [&](auto&& add_task) {
    for (size_t s = 0; s < rows.experts.size(); ++s) {
      const int first = rows.offsets[s];
      const int num = rows.offsets[s + 1] - first;
      if (num > 0) add_task(*weights.experts.Find(rows.experts[s]), first, num);
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

void CountRows(const ExpertRows& rows, std::span<uint32_t> counts) {
  for (size_t s = 0; s < counts.size(); ++s) {
    counts[s] += static_cast<uint32_t>(rows.offsets[s + 1] - rows.offsets[s]);
  }
}

// output = Shared(x) + sum over the chosen experts, in order of choice.
void MixtureOfExperts(const ForwardContext& context, const StepLayer& layer,
                      MatrixView<const float> x, MatrixView<float> output) {
  const CpuContext& cpu = *context.cpu;
  const ExpertsConfig& config = *context.model->config.experts;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const MoeWeights& weights = layer.weights.moe;
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

  const ExpertRows rows = context.dispatch->Dispatch(x, experts, *layer.slots);
  CheckResident(layer, rows.experts);
  CountRows(rows, layer.expert_rows);
  RunExperts(context, weights, rows, x, output);
  const MatrixView<float> routed =
      Dense(buffers.routed.data(), x.rows * routing.top_k, x.cols);
  context.dispatch->Combine(routed);
  CombineExperts(cpu, output, routed, expert_weights, output);
}

bool HasExperts(const LayerWeights& layer) {
  return layer.moe.experts.num_experts() > 0;
}

// expert_layer: its number among the layers with experts, if it is one.
StepLayer MakeStepLayer(const ForwardContext& context,
                        const ForwardOutput& output, const LayerWeights& layer,
                        const LatentCache& cache, size_t expert_layer) {
  StepLayer step = {
      .weights = layer, .cache = cache, .expert_layer = expert_layer};
  if (!HasExperts(layer)) return step;
  step.slots = &context.expert_slots[expert_layer];
  const size_t num_slots =
      output.expert_rows.size() / context.expert_slots.size();
  step.expert_rows =
      output.expert_rows.subspan(expert_layer * num_slots, num_slots);
  return step;
}

// All rows of the step, x still to be filled.
LayerRows RowsOf(const ForwardContext& context, const ForwardBatch& batch) {
  const DeepSeekV3Model& model = *context.model;
  DeepSeekV3Workspace& buffers = *context.workspace;
  const int num_rows = static_cast<int>(batch.token_ids.size());
  const int hidden = model.config.hidden_size;
  const LayerRows rows = {
      .cache = {batch.positions,
                std::span(buffers.block_tables).first(batch.token_ids.size())},
      .forms = std::span(buffers.forms).first(batch.token_ids.size()),
      .first_position = 0,
      .x = Dense(buffers.x.data(), num_rows, hidden),
      .normed = Dense(buffers.normed.data(), num_rows, hidden),
      .down = Dense(buffers.down.data(), num_rows,
                    model.weights.layers[0].attention.down.out())};
  for (const SequenceRows& sequence : batch.sequences) {
    DCHECK(sequence.first_row + sequence.num_rows <= num_rows);
    std::fill_n(buffers.block_tables.begin() + sequence.first_row,
                sequence.num_rows, sequence.block_table);
    for (int i = 0; i < sequence.num_rows; ++i) {
      const int row = sequence.first_row + i;
      buffers.forms[row] =
          model.expands_prompts && batch.positions[row] < sequence.prompt_tokens
              ? AttentionForm::kExpanded
              : AttentionForm::kAbsorbed;
    }
  }
  return rows;
}

void Embed(std::span<const uint32_t> token_ids, const WeightMatrix& embedding,
           MatrixView<float> x) {
  for (int r = 0; r < x.rows; ++r) {
    DCHECK(token_ids[r] < static_cast<uint32_t>(embedding.rows));
    embedding.CopyRow(static_cast<int>(token_ids[r]), x.row(r));
  }
}

MatrixView<float> CopyRows(MatrixView<const float> matrix,
                           std::span<const int32_t> wanted, float* out) {
  const MatrixView<float> copy =
      Dense(out, static_cast<int>(wanted.size()), matrix.cols);
  for (int i = 0; i < copy.rows; ++i) {
    std::copy_n(matrix.row(wanted[i]), matrix.cols, copy.row(i));
  }
  return copy;
}

// The wanted rows, in the order wanted.
LayerRows KeepRows(const LayerRows& rows, std::span<const int32_t> wanted,
                   DeepSeekV3Workspace* buffers) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    buffers->kept_positions[i] = rows.cache.positions[wanted[i]];
    buffers->kept_block_tables[i] = rows.cache.block_tables[wanted[i]];
    buffers->kept_forms[i] = rows.forms[wanted[i]];
  }
  return {.cache = {std::span(buffers->kept_positions).first(wanted.size()),
                    std::span(buffers->kept_block_tables).first(wanted.size())},
          .forms = std::span(buffers->kept_forms).first(wanted.size()),
          .first_position = rows.first_position,
          .x = CopyRows(rows.x, wanted, buffers->kept_x.data()),
          .normed = CopyRows(rows.normed, wanted, buffers->kept_normed.data()),
          .down = CopyRows(rows.down, wanted, buffers->kept_down.data())};
}

// A layer's first half, for all rows: afterwards the cache holds what the
// second half of these and of later rows reads.
void BeginLayer(const ForwardContext& context, const LayerRows& rows,
                const StepLayer& layer) {
  RmsNorm(*context.cpu, rows.x, layer.weights.attention_norm.data(),
          context.model->config.rms_norm_eps, rows.normed);
  WriteCache(context, rows, layer.weights.attention, layer.cache);
}

// The second: x += MLA(normed), then x += FFN(norm(x)).
void EndLayer(const ForwardContext& context, const LayerRows& rows,
              const StepLayer& layer) {
  const CpuContext& cpu = *context.cpu;
  const MatrixView<float> y =
      Dense(context.workspace->output.data(), rows.x.rows, rows.x.cols);
  Attend(context, rows, layer.weights.attention, layer.cache, y);
  AddInPlace(cpu, rows.x, y);
  RmsNorm(cpu, rows.x, layer.weights.mlp_norm.data(),
          context.model->config.rms_norm_eps, rows.normed);
  if (layer.slots == nullptr) {
    DenseMlp(context, layer.weights.dense, rows.normed, y);
  } else {
    MixtureOfExperts(context, layer, rows.normed, y);
  }
  AddInPlace(cpu, rows.x, y);
}

// The last layer of a step, and what stands behind it.
struct LastLayer {
  StepLayer layer;
  const std::vector<float>& norm;
  const PackedWeight& head;
};

// Where no hidden states are wanted, nothing reads the layer's output of the
// rows without logits.
void Finish(const ForwardContext& context, const LastLayer& last,
            std::span<const int32_t> logits_rows, LayerRows rows,
            const ForwardOutput& output) {
  BeginLayer(context, rows, last.layer);
  const bool keeps_all = output.hidden.data != nullptr;
  if (!keeps_all) rows = KeepRows(rows, logits_rows, context.workspace);
  EndLayer(context, rows, last.layer);
  const MatrixView<float> hidden = keeps_all ? output.hidden : rows.normed;
  RmsNorm(*context.cpu, rows.x, last.norm.data(),
          context.model->config.rms_norm_eps, hidden);
  const MatrixView<float> wanted =
      keeps_all
          ? CopyRows(hidden, logits_rows, context.workspace->kept_normed.data())
          : hidden;
  Linear(*context.cpu, {wanted, &last.head, output.logits});
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
  model.expands_prompts =
      !model.weights.layers.front().attention.key_up.empty();
  const int pairs = config.rope_dim / 2;
  model.rope_cos.resize(static_cast<size_t>(max_positions) * pairs);
  model.rope_sin.resize(static_cast<size_t>(max_positions) * pairs);
  FillRopeTables(RopeFrequencies(config), RopeAmplitude(config),
                 Dense(model.rope_cos.data(), max_positions, pairs),
                 Dense(model.rope_sin.data(), max_positions, pairs));
  return model;
}

DeepSeekV3Workspace::DeepSeekV3Workspace(const ModelConfig& config,
                                         int max_rows, int max_logits_rows,
                                         int max_expert_rows,
                                         ModelParts parts) {
  const size_t rows = max_rows;
  const size_t heads_rows = rows * config.num_heads;
  const size_t down_cols =
      config.q_lora_rank + config.kv_lora_rank + config.rope_dim;
  block_tables.resize(rows);
  forms.resize(rows);
  x.resize(rows * config.hidden_size);
  normed.resize(rows * config.hidden_size);
  down.resize(rows * down_cols);
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
    expert_gate_up = std::make_unique_for_overwrite<float[]>(
        static_cast<size_t>(max_expert_rows) * 2 * width);
    routed.resize(rows * top_k * config.hidden_size);
    tasks.reserve(std::max(config.num_heads, moe.num_routed + 1));
  }
  gate_up.resize(rows * 2 * mlp_width);
  const size_t kept_rows = max_logits_rows;
  kept_positions.resize(kept_rows);
  kept_block_tables.resize(kept_rows);
  kept_forms.resize(kept_rows);
  kept_x.resize(kept_rows * config.hidden_size);
  kept_normed.resize(kept_rows * config.hidden_size);
  kept_down.resize(kept_rows * down_cols);
  if (parts == ModelParts::kMainAndDrafter) {
    drafter_input.resize(rows * 2 * config.hidden_size);
    rope_positions.resize(rows);
  }
}

size_t LatentLayerBytes(const ModelConfig& config, CacheDtype dtype) {
  return static_cast<size_t>(kKvBlockTokens) *
         (config.kv_lora_rank + config.rope_dim) * ElementBytes(dtype);
}

void Forward(const ForwardContext& context, const ForwardBatch& batch,
             const ForwardOutput& output) {
  const DeepSeekV3Model& model = *context.model;
  const DeepSeekV3Weights& weights = model.weights;
  const LayerRows rows = RowsOf(context, batch);
  Embed(batch.token_ids, weights.embedding, rows.x);
  LatentCache cache = context.cache;
  size_t expert_layer = 0;
  const LayerWeights& last = weights.layers.back();
  for (const LayerWeights& layer : weights.layers) {
    const StepLayer step =
        MakeStepLayer(context, output, layer, cache, expert_layer);
    expert_layer += HasExperts(layer) ? 1 : 0;
    if (&layer == &last) {
      Finish(context, {step, weights.norm, weights.head}, batch.logits_rows,
             rows, output);
      break;
    }
    BeginLayer(context, rows, step);
    EndLayer(context, rows, step);
    cache.layer_offset_bytes += LatentLayerBytes(model.config, cache.dtype);
  }
}

void Draft(const ForwardContext& context, const ForwardBatch& batch,
           MatrixView<const float> hidden, const ForwardOutput& output) {
  const CpuContext& cpu = *context.cpu;
  const ModelConfig& config = context.model->config;
  const DeepSeekV3Weights& weights = context.model->weights;
  const DrafterWeights& drafter = *weights.drafter;
  LayerRows rows = RowsOf(context, batch);
  rows.first_position = 1;
  const int size = config.hidden_size;
  const MatrixView<float> input =
      Dense(context.workspace->drafter_input.data(), rows.x.rows, 2 * size);
  const MatrixView<float> embedded = Columns(input, 0, size);
  Embed(batch.token_ids, weights.drafter_embedding(), embedded);
  RmsNorm(cpu, embedded, drafter.embedding_norm.data(), config.rms_norm_eps,
          embedded);
  RmsNorm(cpu, hidden, drafter.hidden_norm.data(), config.rms_norm_eps,
          Columns(input, size, size));
  Linear(cpu, {input, &drafter.projection, rows.x});
  LatentCache cache = context.cache;
  cache.layer_offset_bytes +=
      config.num_layers * LatentLayerBytes(config, cache.dtype);
  const StepLayer step = MakeStepLayer(context, output, drafter.layer, cache,
                                       context.expert_slots.size() - 1);
  Finish(context, {step, drafter.norm, weights.drafter_head()},
         batch.logits_rows, rows, output);
}

}  // namespace baton
