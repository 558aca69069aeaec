#include "engine/model/testing/random_model.h"

#include <cmath>
#include <utility>

namespace baton {
namespace {

using nlohmann::json;

// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // In [-1, 1).
  float Uniform() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<float>(static_cast<double>(z >> 11) * 0x1p-52 - 1);
  }

 private:
  uint64_t state_;
};

// Collects tensors under a growing name.
class Writer {
 public:
  Writer(uint64_t seed, TensorDtype dtype) : random_(seed), dtype_(dtype) {}

  // Products of a unit vector have about the length `gain`.
  void Matrix(const std::string& name, int64_t out, int64_t in,
              double gain = 1) {
    std::vector<float> values(out * in);
    const auto scale = static_cast<float>(gain * std::sqrt(3.0 / in));
    for (float& value : values) value = scale * random_.Uniform();
    Add(name, {out, in}, values, dtype_);
  }
  void Vector(const std::string& name, int64_t size, float middle, float spread,
              TensorDtype dtype) {
    std::vector<float> values(size);
    for (float& value : values) value = middle + spread * random_.Uniform();
    Add(name, {size}, values, dtype);
  }
  void Norm(const std::string& name, int64_t size) {
    Vector(name, size, 1, 0.3f, dtype_);
  }
  std::vector<TensorToWrite> Take() { return std::move(tensors_); }

 private:
  void Add(const std::string& name, std::vector<int64_t> shape,
           const std::vector<float>& values, TensorDtype dtype) {
    tensors_.push_back(dtype == TensorDtype::kBf16
                           ? Bf16Tensor(name, std::move(shape), values)
                           : F32Tensor(name, std::move(shape), values));
  }

  Random random_;
  const TensorDtype dtype_;
  std::vector<TensorToWrite> tensors_;
};

int64_t Get(const json& config, const char* key) {
  return config.value(key, json()).is_number() ? config[key].get<int64_t>() : 0;
}

void AddMlp(const std::string& prefix, int64_t hidden, int64_t width,
            Writer* writer) {
  writer->Matrix(prefix + "gate_proj.weight", width, hidden);
  writer->Matrix(prefix + "up_proj.weight", width, hidden);
  writer->Matrix(prefix + "down_proj.weight", hidden, width, 2);
}

void AddAttention(const json& config, const std::string& prefix,
                  Writer* writer) {
  const int64_t hidden = Get(config, "hidden_size");
  const int64_t heads = Get(config, "num_attention_heads");
  const int64_t q_lora = Get(config, "q_lora_rank");
  const int64_t kv_lora = Get(config, "kv_lora_rank");
  const int64_t nope = Get(config, "qk_nope_head_dim");
  const int64_t rope = Get(config, "qk_rope_head_dim");
  const int64_t v = Get(config, "v_head_dim");
  if (q_lora > 0) {
    writer->Matrix(prefix + "q_a_proj.weight", q_lora, hidden);
    writer->Norm(prefix + "q_a_layernorm.weight", q_lora);
    writer->Matrix(prefix + "q_b_proj.weight", heads * (nope + rope), q_lora);
  } else {
    writer->Matrix(prefix + "q_proj.weight", heads * (nope + rope), hidden);
  }
  writer->Matrix(prefix + "kv_a_proj_with_mqa.weight", kv_lora + rope, hidden);
  writer->Norm(prefix + "kv_a_layernorm.weight", kv_lora);
  writer->Matrix(prefix + "kv_b_proj.weight", heads * (nope + v), kv_lora);
  writer->Matrix(prefix + "o_proj.weight", hidden, heads * v, 2);
}

void AddMlpOrMoe(const json& config, int64_t layer, const std::string& prefix,
                 Writer* writer) {
  const int64_t hidden = Get(config, "hidden_size");
  const int64_t experts = Get(config, "n_routed_experts");
  if (experts == 0 || layer < Get(config, "first_k_dense_replace") ||
      layer % config.value("moe_layer_freq", 1) != 0) {
    AddMlp(prefix, hidden, Get(config, "intermediate_size"), writer);
    return;
  }
  const int64_t width = Get(config, "moe_intermediate_size");
  writer->Matrix(prefix + "gate.weight", experts, hidden, 2);
  if (config["topk_method"] == "noaux_tc") {
    writer->Vector(prefix + "gate.e_score_correction_bias", experts, -0.5f,
                   0.3f, TensorDtype::kF32);
  }
  for (int64_t e = 0; e < experts; ++e) {
    AddMlp(prefix + "experts." + std::to_string(e) + ".", hidden, width,
           writer);
  }
  if (const int64_t shared = Get(config, "n_shared_experts"); shared > 0) {
    AddMlp(prefix + "shared_experts.", hidden, shared * width, writer);
  }
}

void AddLayer(const json& config, int64_t layer, Writer* writer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = Get(config, "hidden_size");
  writer->Norm(prefix + "input_layernorm.weight", hidden);
  writer->Norm(prefix + "post_attention_layernorm.weight", hidden);
  AddAttention(config, prefix + "self_attn.", writer);
  AddMlpOrMoe(config, layer, prefix + "mlp.", writer);
}

void AddMtp(const json& config, int64_t layer, Writer* writer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = Get(config, "hidden_size");
  const int64_t vocab = Get(config, "vocab_size");
  writer->Norm(prefix + "enorm.weight", hidden);
  writer->Norm(prefix + "hnorm.weight", hidden);
  writer->Matrix(prefix + "eh_proj.weight", hidden, 2 * hidden);
  writer->Matrix(prefix + "embed_tokens.weight", vocab, hidden);
  writer->Norm(prefix + "shared_head.norm.weight", hidden);
  writer->Matrix(prefix + "shared_head.head.weight", vocab, hidden);
  AddLayer(config, layer, writer);
}

}  // namespace

json SmallV3Config() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "hidden_act": "silu", "vocab_size": 160, "hidden_size": 64,
    "num_hidden_layers": 3, "num_nextn_predict_layers": 1,
    "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-06,
    "rope_theta": 10000, "tie_word_embeddings": false,
    "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32,
      "beta_slow": 1, "original_max_position_embeddings": 64,
      "mscale": 1.0, "mscale_all_dim": 1.0},
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "n_group": 4, "topk_group": 2,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": true, "routed_scaling_factor": 2.5
  })");
}

json SmallV2Config() {
  json config = SmallV3Config();
  config.merge_patch(json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"],
    "num_nextn_predict_layers": null, "n_shared_experts": 2,
    "topk_method": "group_limited_greedy", "scoring_func": "softmax",
    "norm_topk_prob": false, "routed_scaling_factor": 16.0,
    "rope_scaling": {"mscale": 0.707, "mscale_all_dim": 0.707}
  })"));
  return config;
}

std::vector<TensorToWrite> RandomTensors(const json& config, uint64_t seed,
                                         TensorDtype dtype) {
  Writer writer(seed, dtype);
  const int64_t hidden = Get(config, "hidden_size");
  const int64_t vocab = Get(config, "vocab_size");
  const int64_t layers = Get(config, "num_hidden_layers");
  const auto root = static_cast<double>(hidden);
  writer.Matrix("model.embed_tokens.weight", vocab, hidden, std::sqrt(root));
  writer.Norm("model.norm.weight", hidden);
  if (!config.value("tie_word_embeddings", false)) {
    writer.Matrix("lm_head.weight", vocab, hidden, 3);
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    AddLayer(config, layer, &writer);
  }
  for (int64_t i = 0; i < Get(config, "num_nextn_predict_layers"); ++i) {
    AddMtp(config, layers + i, &writer);
  }
  return writer.Take();
}

void WriteModel(const std::string& folder, const json& config,
                const std::vector<TensorToWrite>& tensors) {
  WriteTextFile(folder + "/config.json", config.dump(1));
  WriteSafetensors(folder + "/model.safetensors", tensors);
}

}  // namespace baton
