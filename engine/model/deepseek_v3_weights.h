// The weights of a DeepSeek-V2 or V3 model, packed for the kernels.
#ifndef BATON_ENGINE_MODEL_DEEPSEEK_V3_WEIGHTS_H_
#define BATON_ENGINE_MODEL_DEEPSEEK_V3_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer_experts.h"
#include "engine/model/model_config.h"
#include "engine/model/numerics.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor_check.h"
#include "engine/model/weight_matrix.h"
#include "engine/model/weight_storage.h"
#include "kernels/cpu_context.h"
#include "kernels/linear.h"

namespace baton {

// kv_b_proj is split by head into UK [nope, kv_lora] and UV [v, kv_lora]. The
// absorbed form of attention uses key_absorb, the expanded form key_up.
struct AttentionWeights {
  // [q_lora + kv_lora + rope, hidden]: q_a_proj's rows, then kv_a_proj's; the
  // latter alone where there is no q_lora.
  PackedWeight down;
  std::vector<float> q_norm;  // [q_lora]
  PackedWeight query;  // q_b_proj, or q_proj: [heads * (nope + rope), in]
  std::vector<float> kv_norm;            // [kv_lora]
  std::vector<PackedWeight> key_absorb;  // UK^T of each head: [kv_lora, nope]
  std::vector<PackedWeight> key_up;      // UK; none where numerics are exact.
  std::vector<PackedWeight> value_up;    // UV of each head: [v, kv_lora]
  PackedWeight output;                   // [hidden, heads * v]
};

struct MoeWeights {
  PackedWeight router;             // [experts, hidden]
  std::vector<float> router_bias;  // [experts] with noaux_tc, else empty.
  MlpWeights shared;               // Width 0 without shared experts.
  LayerExperts experts;            // None in a dense layer.
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  AttentionWeights attention;
  std::vector<float> mlp_norm;  // [hidden]
  MlpWeights dense;             // Of a dense layer.
  MoeWeights moe;               // Of any other.
};

// The first MTP layer.
struct DrafterWeights {
  std::vector<float> embedding_norm;  // enorm: [hidden]
  std::vector<float> hidden_norm;     // hnorm: [hidden]
  // eh_proj: [hidden, 2 * hidden], the embedding's half first.
  PackedWeight projection;
  LayerWeights layer;
  std::vector<float> norm;  // shared_head.norm: [hidden]
  // Released files hold copies of the main model's: then these are empty.
  std::optional<WeightMatrix> embedding;
  std::optional<PackedWeight> head;
};

struct DeepSeekV3Weights {
  WeightMatrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> norm;  // [hidden]
  PackedWeight head;        // [vocab, hidden]
  std::optional<DrafterWeights> drafter;

  // REQUIRES: drafter.has_value().
  const WeightMatrix& drafter_embedding() const {
    return drafter->embedding.has_value() ? *drafter->embedding : embedding;
  }
  const PackedWeight& drafter_head() const {
    return drafter->head.has_value() ? *drafter->head : head;
  }
};

struct WeightOptions {
  WeightStorage storage = WeightStorage::kAsStored;
  ModelParts parts = ModelParts::kMain;
  Numerics numerics = Numerics::kExact;
  // The experts to pack, ascending, of each layer of ExpertLayers; empty: all.
  std::vector<std::vector<uint32_t>> resident_experts = {};
};

// The layers with routed experts, ascending: the drafter's is the last.
std::vector<int> ExpertLayers(const ModelConfig& config, ModelParts parts);

// Checks all tensors, then packs those of the parts, layers on the threads of
// `cpu`.
absl::StatusOr<DeepSeekV3Weights> LoadDeepSeekV3Weights(
    const ModelConfig& config, const ModelTensors& tensors,
    const WeightOptions& options, const CpuContext& cpu);

// What the names of an expert's tensors begin with.
std::string ExpertPrefix(int layer, uint32_t expert);
// One expert, bit for bit as LoadDeepSeekV3Weights packs it, on this thread
// alone. REQUIRES: `tensors` has it, and CheckTensors has accepted all.
absl::StatusOr<MlpWeights> LoadExpert(const ModelTensors& tensors,
                                      WeightStorage storage, int layer,
                                      uint32_t expert);
// What the largest expert of these layers takes when it is packed.
size_t MaxExpertBytes(const ModelConfig& config, const ModelTensors& tensors,
                      const WeightOptions& options);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_DEEPSEEK_V3_WEIGHTS_H_
