#include "engine/model/deepseek_v3_weights.h"

#include <cstring>
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

absl::StatusOr<MlpWeights> ReadMlp(const WeightReader& reader,
                                   const std::string& prefix) {
  MlpWeights mlp;
  ASSIGN_OR_RETURN(
      const WeightMatrix gate_up,
      reader.Stack({prefix + "gate_proj.weight", prefix + "up_proj.weight"}));
  mlp.gate_up = gate_up.Pack();
  ASSIGN_OR_RETURN(const WeightMatrix down,
                   reader.Stack({prefix + "down_proj.weight"}));
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
  for (int e = 0; e < config.num_routed; ++e) {
    ASSIGN_OR_RETURN(MlpWeights expert,
                     ReadMlp(reader, absl::StrCat(prefix, "experts.", e, ".")));
    moe->experts.push_back(std::move(expert));
  }
  return absl::OkStatus();
}

absl::Status ReadLayer(const ModelConfig& config, const WeightReader& reader,
                       int index, Numerics numerics, LayerWeights* layer) {
  const std::string prefix = LayerPrefix(index);
  ASSIGN_OR_RETURN(layer->attention_norm,
                   reader.Vector(prefix + "input_layernorm.weight"));
  ASSIGN_OR_RETURN(layer->mlp_norm,
                   reader.Vector(prefix + "post_attention_layernorm.weight"));
  RETURN_IF_ERROR(ReadAttention(config, reader, prefix + "self_attn.", numerics,
                                &layer->attention));
  if (config.IsMoeLayer(index)) {
    return ReadMoe(*config.experts, reader, prefix + "mlp.", &layer->moe);
  }
  ASSIGN_OR_RETURN(layer->dense, ReadMlp(reader, prefix + "mlp."));
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
                         const WeightReader& reader, Numerics numerics,
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
  return ReadLayer(config, reader, config.num_layers, numerics,
                   &drafter->layer);
}

}  // namespace

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
      return ReadLayer(config, reader, part, options.numerics,
                       &weights.layers[part]);
    }
    if (part == config.num_layers) return ReadEnds(config, reader, &weights);
    return ReadDrafter(config, tensors, reader, options.numerics,
                       &*weights.drafter);
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

}  // namespace baton
