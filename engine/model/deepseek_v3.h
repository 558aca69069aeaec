// The forward pass of DeepSeek-V2 and V3, as equations over kernels.
#ifndef BATON_ENGINE_MODEL_DEEPSEEK_V3_H_
#define BATON_ENGINE_MODEL_DEEPSEEK_V3_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/expert_dispatch.h"
#include "engine/model/deepseek_v3_weights.h"
#include "engine/model/model_config.h"
#include "engine/model/tensor_check.h"
#include "engine/model_runner.h"
#include "kernels/cpu_context.h"
#include "kernels/elementwise.h"
#include "kernels/latent_attention.h"
#include "kernels/linear.h"
#include "kernels/matrix_view.h"

namespace baton {

// A model at rest: all that a forward pass reads. Immutable, so thread-safe.
struct DeepSeekV3Model {
  ModelConfig config;
  DeepSeekV3Weights weights;
  float softmax_scale = 0;
  // Attention over a request's prompt is expanded; else none is.
  bool expands_prompts = false;
  std::vector<float> rope_cos;  // [max_positions, rope_dim / 2]
  std::vector<float> rope_sin;

  RopeTables rope_tables() const;
};

// Tables for positions [0, max_positions).
DeepSeekV3Model MakeModel(const ModelConfig& config, DeepSeekV3Weights weights,
                          int max_positions);

// Both compute the same attention, with different rounding.
enum class AttentionForm : uint8_t {
  kAbsorbed,  // In the latent space of the cache.
  kExpanded,  // Over keys and values of each head, made from the cache.
};

// The activations of one step; allocated once, for at most max_rows rows. Each
// buffer is row-major and holds [rows, width] of the current step.
struct DeepSeekV3Workspace {
  // max_expert_rows: of this rank's experts; 0 without.
  DeepSeekV3Workspace(const ModelConfig& config, int max_rows,
                      int max_logits_rows, int max_expert_rows,
                      ModelParts parts);

  std::vector<const uint32_t*> block_tables;  // Of each row.
  std::vector<AttentionForm> forms;           // Of each row.
  std::vector<float> x;                       // [rows, hidden], the residual.
  std::vector<float> normed;                  // [rows, hidden]
  std::vector<float> down;                    // [rows, q_lora + kv_lora + rope]
  std::vector<float> query;                   // [rows, heads * (nope + rope)]
  std::vector<float> q_latent;                // [rows * heads, kv_lora]
  std::vector<float> z;                       // [rows * heads, kv_lora]
  std::vector<float> heads;                   // [rows, heads * v]
  std::vector<float> output;                  // [rows, hidden], of a sub-layer.
  std::vector<float> gate_up;         // [rows, 2 * width], dense or shared.
  std::vector<float> router_logits;   // [rows, experts]
  std::vector<int32_t> experts;       // [rows, top_k]
  std::vector<float> expert_weights;  // [rows, top_k]
  // [expert rows, 2 * width]. Not written before it is used: in a group, all
  // rows of all ranks have a place, but hardly ever come.
  std::unique_ptr<float[]> expert_gate_up;
  std::vector<float> routed;  // [rows * top_k, hidden]
  // The same of the rows whose logits are wanted, in the last layer.
  std::vector<int32_t> kept_positions;
  std::vector<const uint32_t*> kept_block_tables;
  std::vector<AttentionForm> kept_forms;
  std::vector<float> kept_x;
  std::vector<float> kept_normed;
  std::vector<float> kept_down;
  std::vector<LinearTask> tasks;  // Heads, or experts and the shared one.
  // Of the drafter; empty without one.
  std::vector<float> drafter_input;     // [rows, 2 * hidden]
  std::vector<int32_t> rope_positions;  // [rows]
};

// What a forward pass works with; borrowed.
struct ForwardContext {
  const CpuContext* cpu = nullptr;
  const DeepSeekV3Model* model = nullptr;
  ExpertDispatch* dispatch = nullptr;  // Null without routed experts.
  DeepSeekV3Workspace* workspace = nullptr;
  LatentCache cache;  // Of layer 0.
  // As in ForwardBatch, but never empty where the model has experts.
  std::span<const ExpertSlots> expert_slots;
};

// Of one layer: 64 rows of latent and rope key.
size_t LatentLayerBytes(const ModelConfig& config, CacheDtype dtype);

// Writes each row's latent and rope key of every layer into the cache, then
// output.logits[i] of row batch.logits_rows[i], and every row's output.hidden
// if it has data. Each layer with experts makes one exchange, rows or none.
void Forward(const ForwardContext& context, const ForwardBatch& batch,
             const ForwardOutput& output);

// The same through the drafter alone, whose layer lies behind the main ones in
// the cache. Row r, in slot p = batch.positions[r] >= 1, is token t_p with
// hidden[r] of position p - 1, and has that position in the rotary embedding:
//   u = eh_proj [enorm(embed(t_p)) | hnorm(hidden[r])]
//   output.hidden[r] = shared_head.norm(layer(u)); logits = head . of that
// output.hidden is to a chained draft what Forward's is to the first one; it
// may be the memory of `hidden`. REQUIRES: the weights have a drafter.
void Draft(const ForwardContext& context, const ForwardBatch& batch,
           MatrixView<const float> hidden, const ForwardOutput& output);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_DEEPSEEK_V3_H_
