// Files of a model's folder.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

// The first byte of an input.
constexpr char kTensors = 's';
constexpr char kConfig = 'c';

// [length u64][header][data], as in a file.
std::string Safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) +
         header + std::string(data_bytes, '\1');
}

// Every byte that a tensor says it has is there.
void ReadTensors(std::string_view bytes) {
  const auto tensors =
      ParseSafetensors(std::as_bytes(std::span(bytes)), "model.safetensors");
  if (!tensors.ok()) {
    CHECK(absl::IsInvalidArgument(tensors.status())) << tensors.status();
    return;
  }
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  for (const Tensor& tensor : *tensors) {
    if (tensor.bytes.empty()) continue;
    CHECK(tensor.bytes.data() >= begin);
    CHECK(tensor.bytes.data() + tensor.bytes.size() <= begin + bytes.size());
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {
      kTensors + Safetensors(R"({"a":{"dtype":"BF16","shape":[2,3],)"
                             R"("data_offsets":[0,12]},"b":{"dtype":"F32",)"
                             R"("shape":[1],"data_offsets":[12,16]}})",
                             16),
      kTensors + Safetensors(R"({"__metadata__":{"format":"pt"},"c":{"dtype":)"
                             R"("F8_E4M3","shape":[0],"data_offsets":[0,0]}})",
                             0),
      kConfig +
          std::string(
              R"({"model_type":"deepseek_v3","hidden_size":192,)"
              R"("intermediate_size":512,"kv_lora_rank":64,"q_lora_rank":96,)"
              R"("moe_intermediate_size":32,"n_group":8,"n_routed_experts":64,)"
              R"("n_shared_experts":1,"norm_topk_prob":true,)"
              R"("num_attention_heads":6,"num_key_value_heads":6,)"
              R"("num_experts_per_tok":8,"num_hidden_layers":6,)"
              R"("num_nextn_predict_layers":1,"first_k_dense_replace":1,)"
              R"("moe_layer_freq":1,"max_position_embeddings":4096,)"
              R"("qk_nope_head_dim":32,"qk_rope_head_dim":16,"v_head_dim":32,)"
              R"("rms_norm_eps":1e-6,"rope_theta":10000.0,"rope_scaling":)"
              R"({"type":"yarn","factor":4.0,"beta_fast":32,"beta_slow":1,)"
              R"("original_max_position_embeddings":1024,"mscale":1.0,)"
              R"("mscale_all_dim":1.0},"routed_scaling_factor":2.0,)"
              R"("scoring_func":"sigmoid","topk_group":4,"topk_method":)"
              R"("noaux_tc","vocab_size":4096,"hidden_act":"silu",)"
              R"("tie_word_embeddings":false})")};
}

void FuzzOne(std::string_view bytes) {
  if (bytes.empty()) return;
  if (bytes.front() == kTensors) return ReadTensors(bytes.substr(1));
  const auto config = ParseModelConfig(bytes.substr(1), "config.json");
  if (!config.ok()) return;
  CHECK_GT(config->vocab_size, 0);
}

}  // namespace baton
