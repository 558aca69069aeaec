// config.json of the DeepSeek-V2 and V3 family (V2-Lite, V2, V2.5, V3, R1,
// V3.1).
#ifndef BATON_ENGINE_MODEL_MODEL_CONFIG_H_
#define BATON_ENGINE_MODEL_MODEL_CONFIG_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/route_experts.h"

namespace baton {

enum class ModelArchitecture { kDeepSeekV2, kDeepSeekV3 };

// Rotary frequencies stretched over a longer context.
struct YarnScaling {
  double factor = 1;
  double original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
};

// Routed experts of the layers that have them.
struct ExpertsConfig {
  int num_routed = 0;
  int num_shared = 0;  // One MLP of width num_shared * intermediate_size.
  int intermediate_size = 0;
  int first_dense_layers = 0;
  int layer_frequency = 1;
  // As the kernel takes it, without the bias.
  RoutingOptions routing;
};

// Every value has been checked: a sum or product of a few of them fits an int.
struct ModelConfig {
  ModelArchitecture architecture = ModelArchitecture::kDeepSeekV3;
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int num_mtp_layers = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int q_lora_rank = 0;  // 0: one q_proj.
  int kv_lora_rank = 0;
  int nope_dim = 0;
  int rope_dim = 0;
  int v_dim = 0;
  int max_position = 0;
  float rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;
  std::optional<ExpertsConfig> experts;
  bool tied_embeddings = false;
  bool fp8_blocks = false;  // Weights may be E4M3 in blocks of 128 x 128.

  int q_dim() const { return num_heads * (nope_dim + rope_dim); }
  bool IsMoeLayer(int layer) const {
    return experts.has_value() && layer >= experts->first_dense_layers &&
           layer % experts->layer_frequency == 0;
  }
};

// INVALID_ARGUMENT for a value out of range, UNIMPLEMENTED for what the family
// has but Baton has not; both name `source` and the field, its value, and what
// is allowed.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text,
                                             const std::string& source);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_MODEL_CONFIG_H_
