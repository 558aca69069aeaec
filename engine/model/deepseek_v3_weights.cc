#include "engine/model/deepseek_v3_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/model/tensor_check.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

constexpr char kGate[] = "gate_proj.weight";
constexpr char kUp[] = "up_proj.weight";
constexpr char kDown[] = "down_proj.weight";

absl::StatusOr<MlpWeights> ReadMlp(const WeightReader& reader,
                                   const std::string& prefix) {
  MlpWeights mlp;
  ASSIGN_OR_RETURN(const WeightMatrix gate_up,
                   reader.Stack({prefix + kGate, prefix + kUp}));
  mlp.gate_up = gate_up.Pack();
  ASSIGN_OR_RETURN(const WeightMatrix down, reader.Stack({prefix + kDown}));
  mlp.down = down.Pack();
  return mlp;
}

absl::Status ReadQuery(const ModelConfig& config, const WeightReader& reader,
                       const std::string& prefix, AttentionWeights* attention) {
  const std::string kv_a = prefix + "kv_a_proj_with_mqa.weight";
  if (config.q_lora_rank == 0) {
    ASSIGN_OR_RETURN(const WeightMatrix down, reader.Stack({kv_a}));
    attention->down = down.Pack();
    ASSIGN_OR_RETURN(const WeightMatrix query,
                     reader.Stack({prefix + "q_proj.weight"}));
    attention->query = query.Pack();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const WeightMatrix down,
                   reader.Stack({prefix + "q_a_proj.weight", kv_a}));
  attention->down = down.Pack();
  ASSIGN_OR_RETURN(attention->q_norm,
                   reader.Vector(prefix + "q_a_layernorm.weight"));
  ASSIGN_OR_RETURN(const WeightMatrix query,
                   reader.Stack({prefix + "q_b_proj.weight"}));
  attention->query = query.Pack();
  return absl::OkStatus();
}

absl::Status ReadAttention(const ModelConfig& config,
                           const WeightReader& reader,
                           const std::string& prefix, Numerics numerics,
                           AttentionWeights* attention) {
  RETURN_IF_ERROR(ReadQuery(config, reader, prefix, attention));
  ASSIGN_OR_RETURN(attention->kv_norm,
                   reader.Vector(prefix + "kv_a_layernorm.weight"));
  ASSIGN_OR_RETURN(const WeightMatrix kv_b,
                   reader.Stack({prefix + "kv_b_proj.weight"}));
  for (int head = 0; head < config.num_heads; ++head) {
    const int key_row = head * (config.nope_dim + config.v_dim);
    attention->key_absorb.push_back(
        kv_b.PackRowsTransposed(key_row, config.nope_dim));
    if (numerics != Numerics::kExact) {
      attention->key_up.push_back(kv_b.PackRows(key_row, config.nope_dim));
    }
    attention->value_up.push_back(
        kv_b.PackRows(key_row + config.nope_dim, config.v_dim));
  }
  ASSIGN_OR_RETURN(const WeightMatrix output,
                   reader.Stack({prefix + "o_proj.weight"}));
  attention->output = output.Pack();
  return absl::OkStatus();
}

std::vector<uint32_t> AllExperts(const ExpertsConfig& config) {
  std::vector<uint32_t> experts(config.num_routed);
  std::iota(experts.begin(), experts.end(), 0);
  return experts;
}

// Of the layer with this number.
std::vector<uint32_t> ResidentExperts(const ModelConfig& config,
                                      const WeightOptions& options, int layer) {
  if (options.resident_experts.empty()) return AllExperts(*config.experts);
  int expert_layer = 0;
  for (int before = 0; before < layer; ++before) {
    expert_layer += config.IsMoeLayer(before) ? 1 : 0;
  }
  return options.resident_experts[expert_layer];
}

// All but the experts.
absl::Status ReadMoe(const ExpertsConfig& config, const WeightReader& reader,
                     const std::string& prefix, MoeWeights* moe) {
  ASSIGN_OR_RETURN(const WeightMatrix router,
                   reader.Stack({prefix + "gate.weight"}));
  moe->router = router.Pack();
  if (config.routing.method == RoutingMethod::kNoAuxTc) {
    ASSIGN_OR_RETURN(moe->router_bias,
                     reader.Vector(prefix + "gate.e_score_correction_bias"));
  }
  if (config.num_shared > 0) {
    ASSIGN_OR_RETURN(moe->shared, ReadMlp(reader, prefix + "shared_experts."));
  }
  moe->experts = LayerExperts(config.num_routed);
  return absl::OkStatus();
}

absl::Status ReadLayer(const ModelConfig& config, const WeightReader& reader,
                       int index, const WeightOptions& options,
                       LayerWeights* layer) {
  const std::string prefix = LayerPrefix(index);
  ASSIGN_OR_RETURN(layer->attention_norm,
                   reader.Vector(prefix + "input_layernorm.weight"));
  ASSIGN_OR_RETURN(layer->mlp_norm,
                   reader.Vector(prefix + "post_attention_layernorm.weight"));
  RETURN_IF_ERROR(ReadAttention(config, reader, prefix + "self_attn.",
                                options.numerics, &layer->attention));
  if (!config.IsMoeLayer(index)) {
    ASSIGN_OR_RETURN(layer->dense, ReadMlp(reader, prefix + "mlp."));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(
      ReadMoe(*config.experts, reader, prefix + "mlp.", &layer->moe));
  for (const uint32_t expert : ResidentExperts(config, options, index)) {
    ASSIGN_OR_RETURN(MlpWeights weights,
                     ReadMlp(reader, ExpertPrefix(index, expert)));
    layer->moe.experts.Put(expert, std::move(weights));
  }
  return absl::OkStatus();
}

absl::Status ReadEnds(const ModelConfig& config, const WeightReader& reader,
                      DeepSeekV3Weights* weights) {
  ASSIGN_OR_RETURN(weights->embedding, reader.Stack({kEmbedding}));
  ASSIGN_OR_RETURN(weights->norm, reader.Vector("model.norm.weight"));
  if (config.tied_embeddings) {
    weights->head = weights->embedding.Pack();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const WeightMatrix head, reader.Stack({kHead}));
  weights->head = head.Pack();
  return absl::OkStatus();
}

bool AreCopies(const ModelTensors& tensors, const std::string& a,
               const std::string& b) {
  const Tensor& left = *tensors.Find(a);
  const Tensor& right = *tensors.Find(b);
  return left.dtype == right.dtype && left.bytes.size() == right.bytes.size() &&
         std::memcmp(left.bytes.data(), right.bytes.data(),
                     left.bytes.size()) == 0;
}

absl::Status ReadDrafter(const ModelConfig& config, const ModelTensors& tensors,
                         const WeightReader& reader,
                         const WeightOptions& options,
                         DrafterWeights* drafter) {
  const std::string prefix = LayerPrefix(config.num_layers);
  ASSIGN_OR_RETURN(drafter->embedding_norm,
                   reader.Vector(prefix + "enorm.weight"));
  ASSIGN_OR_RETURN(drafter->hidden_norm,
                   reader.Vector(prefix + "hnorm.weight"));
  ASSIGN_OR_RETURN(const WeightMatrix projection,
                   reader.Stack({prefix + "eh_proj.weight"}));
  drafter->projection = projection.Pack();
  ASSIGN_OR_RETURN(drafter->norm,
                   reader.Vector(prefix + "shared_head.norm.weight"));
  const std::string embedding = prefix + "embed_tokens.weight";
  if (!AreCopies(tensors, embedding, kEmbedding)) {
    ASSIGN_OR_RETURN(drafter->embedding, reader.Stack({embedding}));
  }
  const std::string head = prefix + "shared_head.head.weight";
  if (!AreCopies(tensors, head, config.tied_embeddings ? kEmbedding : kHead)) {
    ASSIGN_OR_RETURN(const WeightMatrix own, reader.Stack({head}));
    drafter->head = own.Pack();
  }
  return ReadLayer(config, reader, config.num_layers, options, &drafter->layer);
}

}  // namespace

std::vector<int> ExpertLayers(const ModelConfig& config, ModelParts parts) {
  const int num_layers =
      config.num_layers + (parts == ModelParts::kMainAndDrafter ? 1 : 0);
  std::vector<int> layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    if (config.IsMoeLayer(layer)) layers.push_back(layer);
  }
  return layers;
}

absl::StatusOr<DeepSeekV3Weights> LoadDeepSeekV3Weights(
    const ModelConfig& config, const ModelTensors& tensors,
    const WeightOptions& options, const CpuContext& cpu) {
  RETURN_IF_ERROR(
      CheckTensors(config, tensors, options.storage, options.parts));
  const WeightReader reader(tensors, options.storage);
  DeepSeekV3Weights weights;
  weights.layers.resize(config.num_layers);
  int num_parts = config.num_layers + 1;
  if (options.parts == ModelParts::kMainAndDrafter) {
    weights.drafter.emplace();
    ++num_parts;
  }
  std::vector<absl::Status> statuses(num_parts);
  const auto read_part = [&](int part) {
    if (part < config.num_layers) {
      return ReadLayer(config, reader, part, options, &weights.layers[part]);
    }
    if (part == config.num_layers) return ReadEnds(config, reader, &weights);
    return ReadDrafter(config, tensors, reader, options, &*weights.drafter);
  };
  const auto note_part = [&](int part) { statuses[part] = read_part(part); };
  if (cpu.threads == nullptr) {
    for (int part = 0; part < num_parts; ++part) note_part(part);
  } else {
    cpu.threads->ParallelFor(num_parts, note_part);
  }
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return weights;
}

std::string ExpertPrefix(int layer, uint32_t expert) {
  return absl::StrCat(LayerPrefix(layer), "mlp.experts.", expert, ".");
}

absl::StatusOr<MlpWeights> LoadExpert(const ModelTensors& tensors,
                                      WeightStorage storage, int layer,
                                      uint32_t expert) {
  return ReadMlp(WeightReader(tensors, storage), ExpertPrefix(layer, expert));
}

size_t MaxExpertBytes(const ModelConfig& config, const ModelTensors& tensors,
                      const WeightOptions& options) {
  const WeightReader reader(tensors, options.storage);
  size_t max_bytes = 0;
  for (const int layer : ExpertLayers(config, options.parts)) {
    for (const uint32_t expert : AllExperts(*config.experts)) {
      const std::string prefix = ExpertPrefix(layer, expert);
      max_bytes = std::max(max_bytes,
                           reader.PackedBytes({prefix + kGate, prefix + kUp}) +
                               reader.PackedBytes({prefix + kDown}));
    }
  }
  return max_bytes;
}

}  // namespace baton
