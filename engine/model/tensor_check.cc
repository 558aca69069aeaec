#include "engine/model/tensor_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/model/fp8.h"

namespace baton {
namespace {

enum class TensorRole {
  kVector,      // Norms and biases: bf16 or float32.
  kMatrix,      // Embedding, head, router: bf16 or float32.
  kProjection,  // The same, or FP8 with its scales.
};

struct TensorSpec {
  std::string name;
  TensorRole role;
  std::vector<int64_t> shape;
};

// The tensors of one part of the model, collected.
class SpecList {
 public:
  void Vector(std::string name, int64_t size) {
    specs_.push_back({std::move(name), TensorRole::kVector, {size}});
  }
  void Matrix(std::string name, int64_t out, int64_t in) {
    specs_.push_back({std::move(name), TensorRole::kMatrix, {out, in}});
  }
  void Projection(std::string name, int64_t out, int64_t in) {
    specs_.push_back({std::move(name), TensorRole::kProjection, {out, in}});
  }
  const std::vector<TensorSpec>& specs() const { return specs_; }

 private:
  std::vector<TensorSpec> specs_;
};

void AddAttention(const ModelConfig& config, const std::string& prefix,
                  SpecList* list) {
  const int64_t hidden = config.hidden_size;
  if (config.q_lora_rank > 0) {
    list->Projection(prefix + "q_a_proj.weight", config.q_lora_rank, hidden);
    list->Vector(prefix + "q_a_layernorm.weight", config.q_lora_rank);
    list->Projection(prefix + "q_b_proj.weight", config.q_dim(),
                     config.q_lora_rank);
  } else {
    list->Projection(prefix + "q_proj.weight", config.q_dim(), hidden);
  }
  list->Projection(prefix + "kv_a_proj_with_mqa.weight",
                   config.kv_lora_rank + config.rope_dim, hidden);
  list->Vector(prefix + "kv_a_layernorm.weight", config.kv_lora_rank);
  list->Projection(prefix + "kv_b_proj.weight",
                   config.num_heads * (config.nope_dim + config.v_dim),
                   config.kv_lora_rank);
  list->Projection(prefix + "o_proj.weight", hidden,
                   config.num_heads * config.v_dim);
}

void AddMlp(const std::string& prefix, int64_t hidden, int64_t width,
            SpecList* list) {
  list->Projection(prefix + "gate_proj.weight", width, hidden);
  list->Projection(prefix + "up_proj.weight", width, hidden);
  list->Projection(prefix + "down_proj.weight", hidden, width);
}

void AddMoe(const ModelConfig& config, const std::string& prefix,
            SpecList* list) {
  const ExpertsConfig& experts = *config.experts;
  const int64_t hidden = config.hidden_size;
  const int64_t width = experts.intermediate_size;
  list->Matrix(prefix + "gate.weight", experts.num_routed, hidden);
  if (experts.routing.method == RoutingMethod::kNoAuxTc) {
    list->Vector(prefix + "gate.e_score_correction_bias", experts.num_routed);
  }
  for (int e = 0; e < experts.num_routed; ++e) {
    AddMlp(absl::StrCat(prefix, "experts.", e, "."), hidden, width, list);
  }
  if (experts.num_shared > 0) {
    AddMlp(prefix + "shared_experts.", hidden, experts.num_shared * width,
           list);
  }
}

void AddDecoderLayer(const ModelConfig& config, int layer, SpecList* list) {
  const std::string prefix = LayerPrefix(layer);
  list->Vector(prefix + "input_layernorm.weight", config.hidden_size);
  list->Vector(prefix + "post_attention_layernorm.weight", config.hidden_size);
  AddAttention(config, prefix + "self_attn.", list);
  if (config.IsMoeLayer(layer)) {
    AddMoe(config, prefix + "mlp.", list);
  } else {
    AddMlp(prefix + "mlp.", config.hidden_size, config.intermediate_size, list);
  }
}

void AddMtpLayer(const ModelConfig& config, int layer, SpecList* list) {
  const std::string prefix = LayerPrefix(layer);
  const int64_t hidden = config.hidden_size;
  list->Vector(prefix + "enorm.weight", hidden);
  list->Vector(prefix + "hnorm.weight", hidden);
  list->Matrix(prefix + "eh_proj.weight", hidden, 2 * hidden);
  list->Vector(prefix + "shared_head.norm.weight", hidden);
  list->Matrix(prefix + "embed_tokens.weight", config.vocab_size, hidden);
  list->Matrix(prefix + "shared_head.head.weight", config.vocab_size, hidden);
  AddDecoderLayer(config, layer, list);
}

void AddMainModel(const ModelConfig& config, SpecList* list) {
  list->Matrix("model.embed_tokens.weight", config.vocab_size,
               config.hidden_size);
  list->Vector("model.norm.weight", config.hidden_size);
  if (!config.tied_embeddings) {
    list->Matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    AddDecoderLayer(config, layer, list);
  }
}

// The first by name; null if there is none.
const Tensor* FindPrefix(const ModelTensors& tensors,
                         const std::string& prefix) {
  const auto it =
      std::ranges::lower_bound(tensors.tensors(), prefix, {}, &Tensor::name);
  return it != tensors.tensors().end() && it->name.starts_with(prefix)
             ? &*it
             : nullptr;
}

absl::Status Fault(const Tensor& tensor, const std::string& problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, " ", problem));
}

// An MTP layer has all that an ordinary one has, so it could pass for one.
absl::Status CheckNoMtpLayer(const ModelConfig& config,
                             const ModelTensors& tensors) {
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const char* part :
         {"eh_proj.", "embed_tokens.", "enorm.", "hnorm.", "shared_head."}) {
      const Tensor* tensor = FindPrefix(tensors, LayerPrefix(layer) + part);
      if (tensor == nullptr) continue;
      return Fault(*tensor, absl::StrCat("is of an MTP layer, but with "
                                         "config.json's num_hidden_layers = ",
                                         config.num_layers, " layer ", layer,
                                         " is an ordinary one"));
    }
  }
  return absl::OkStatus();
}

// The layer of "model.layers.3.x"; nullopt for a tensor outside the layers.
std::optional<int> LayerOf(absl::string_view name) {
  int layer = 0;
  if (!absl::ConsumePrefix(&name, "model.layers.")) return std::nullopt;
  if (!absl::SimpleAtoi(name.substr(0, name.find('.')), &layer)) {
    return std::nullopt;
  }
  return layer;
}

// `used`: the names of all that the model reads, but for scales.
absl::Status CheckNoneLeftOut(const ModelConfig& config,
                              const ModelTensors& tensors,
                              const std::set<std::string>& used) {
  for (const Tensor& tensor : tensors.tensors()) {
    const std::optional<int> layer = LayerOf(tensor.name);
    absl::string_view name = tensor.name;
    absl::ConsumeSuffix(&name, "_scale_inv");
    if (!layer.has_value() || used.contains(std::string(name)) ||
        tensor.name.ends_with(".inv_freq")) {
      continue;
    }
    if (*layer < config.num_layers + config.num_mtp_layers) {
      return Fault(tensor, absl::StrCat("has no place in layer ", *layer,
                                        " by config.json's n_routed_experts, "
                                        "n_shared_experts, topk_method, "
                                        "first_k_dense_replace, q_lora_rank"));
    }
    if (FindPrefix(tensors, LayerPrefix(*layer) + "eh_proj.") != nullptr) {
      continue;
    }
    return Fault(tensor, absl::StrCat("is of a layer too many by config.json's "
                                      "num_hidden_layers = ",
                                      config.num_layers));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Tensor*> FindWithShape(const ModelTensors& tensors,
                                            const std::string& name,
                                            const std::vector<int64_t>& shape) {
  const Tensor* tensor = tensors.Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(tensors.folder(), ": tensor ", name, " is missing"));
  }
  if (tensor->shape != shape) {
    return Fault(*tensor,
                 absl::StrCat("is ", ShapeText(tensor->shape),
                              ", but config.json gives ", ShapeText(shape)));
  }
  return tensor;
}

absl::Status CheckScales(const ModelTensors& tensors, const Tensor& weight) {
  const std::vector<int64_t> shape = {
      NumFp8Blocks(static_cast<int>(weight.shape[0])),
      NumFp8Blocks(static_cast<int>(weight.shape[1]))};
  ASSIGN_OR_RETURN(const Tensor* scales,
                   FindWithShape(tensors, weight.name + "_scale_inv", shape));
  if (scales->dtype == TensorDtype::kF32) return absl::OkStatus();
  return Fault(*scales,
               absl::StrCat("is ", std::string(TensorDtypeName(scales->dtype)),
                            ", but must be F32"));
}

absl::Status CheckTensor(const TensorSpec& spec, const ModelConfig& config,
                         const ModelTensors& tensors, WeightStorage storage) {
  ASSIGN_OR_RETURN(const Tensor* tensor,
                   FindWithShape(tensors, spec.name, spec.shape));
  const TensorDtype dtype = tensor->dtype;
  const std::string name(TensorDtypeName(dtype));
  if (storage == WeightStorage::kBf16 && spec.role != TensorRole::kVector &&
      dtype != TensorDtype::kBf16) {
    return Fault(*tensor, absl::StrCat("is ", name,
                                       ": keeping it as bf16 would round it"));
  }
  if (dtype == TensorDtype::kBf16 || dtype == TensorDtype::kF32) {
    return absl::OkStatus();
  }
  if (dtype != TensorDtype::kF8E4M3 || spec.role != TensorRole::kProjection) {
    return Fault(*tensor,
                 absl::StrCat("is ", name, ", but must be BF16 or F32"));
  }
  if (!config.fp8_blocks) {
    return Fault(*tensor, absl::StrCat("is ", name,
                                       ", but config.json has no "
                                       "quantization_config"));
  }
  return CheckScales(tensors, *tensor);
}

}  // namespace

std::string LayerPrefix(int layer) {
  return absl::StrCat("model.layers.", layer, ".");
}

absl::Status CheckTensors(const ModelConfig& config,
                          const ModelTensors& tensors, WeightStorage storage,
                          ModelParts parts) {
  const bool has_drafter = parts == ModelParts::kMainAndDrafter;
  CHECK(!has_drafter || config.num_mtp_layers > 0);
  RETURN_IF_ERROR(CheckNoMtpLayer(config, tensors));
  SpecList list;
  AddMainModel(config, &list);
  const int end = config.num_layers + config.num_mtp_layers;
  for (int layer = config.num_layers; layer < end; ++layer) {
    const bool is_drafter = has_drafter && layer == config.num_layers;
    if (is_drafter || FindPrefix(tensors, LayerPrefix(layer)) != nullptr) {
      AddMtpLayer(config, layer, &list);
    }
  }
  std::set<std::string> used;
  for (const TensorSpec& spec : list.specs()) {
    RETURN_IF_ERROR(CheckTensor(spec, config, tensors, storage));
    used.insert(spec.name);
  }
  return CheckNoneLeftOut(config, tensors, used);
}

}  // namespace baton
