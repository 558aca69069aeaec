#include "engine/model/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace baton {
namespace {

using nlohmann::json;

// DeepSeek-V3's own values.
json V3() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "attention_bias": false, "hidden_act": "silu",
    "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "intermediate_size": 18432,
    "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-06,
    "rope_theta": 10000, "tie_word_embeddings": false,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32,
      "beta_slow": 1, "original_max_position_embeddings": 4096,
      "mscale": 1.0, "mscale_all_dim": 1.0},
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
      "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
  })");
}

// DeepSeek-V2's (236 B) differences.
json V2() {
  json config = V3();
  config.merge_patch(json::parse(R"({
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "num_nextn_predict_layers": null, "quantization_config": null,
    "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "topk_group": 3, "topk_method": "group_limited_greedy",
    "scoring_func": "softmax", "norm_topk_prob": false,
    "routed_scaling_factor": 16.0, "first_k_dense_replace": 1,
    "rope_scaling": {"mscale": 0.707, "mscale_all_dim": 0.707}
  })"));
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "config.json");
}

TEST(ModelConfigTest, ReadsDeepSeekV3) {
  const auto config = Parse(V3());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, ModelArchitecture::kDeepSeekV3);
  EXPECT_EQ(config->vocab_size, 129280);
  EXPECT_EQ(config->num_layers, 61);
  EXPECT_EQ(config->num_mtp_layers, 1);
  EXPECT_EQ(config->q_lora_rank, 1536);
  EXPECT_EQ(config->q_dim(), 24576);
  EXPECT_EQ(config->max_position, 163840);
  EXPECT_FLOAT_EQ(config->rms_norm_eps, 1e-6f);
  EXPECT_TRUE(config->fp8_blocks);
  ASSERT_TRUE(config->yarn.has_value());
  EXPECT_EQ(config->yarn->factor, 40);
  EXPECT_EQ(config->yarn->mscale_all_dim, 1);
  ASSERT_TRUE(config->experts.has_value());
  const RoutingOptions& routing = config->experts->routing;
  EXPECT_EQ(routing.method, RoutingMethod::kNoAuxTc);
  EXPECT_EQ(routing.scoring, ScoringFunction::kSigmoid);
  EXPECT_EQ(routing.num_groups, 8);
  EXPECT_EQ(routing.num_kept_groups, 4);
  EXPECT_EQ(routing.top_k, 8);
  EXPECT_TRUE(routing.normalize);
  EXPECT_EQ(routing.scaling_factor, 2.5f);
  EXPECT_FALSE(config->IsMoeLayer(2));
  EXPECT_TRUE(config->IsMoeLayer(3));
}

TEST(ModelConfigTest, ReadsDeepSeekV2) {
  const auto config = Parse(V2());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, ModelArchitecture::kDeepSeekV2);
  EXPECT_EQ(config->num_mtp_layers, 0);
  EXPECT_FALSE(config->fp8_blocks);
  const RoutingOptions& routing = config->experts->routing;
  EXPECT_EQ(routing.method, RoutingMethod::kGroupLimitedGreedy);
  EXPECT_EQ(routing.scoring, ScoringFunction::kSoftmax);
  EXPECT_EQ(routing.num_groups, 8);
  EXPECT_EQ(routing.num_kept_groups, 3);
  EXPECT_FALSE(routing.normalize);
  EXPECT_EQ(routing.scaling_factor, 16.0f);
}

TEST(ModelConfigTest, ReadsV2LiteWithoutQueryRankAndGroups) {
  json patched = V2();
  patched["q_lora_rank"] = nullptr;
  patched["topk_method"] = "greedy";
  patched["n_group"] = 7;  // Greedy selection does not look at groups.
  patched["routed_scaling_factor"] = 1.0;
  const auto config = Parse(patched);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->q_lora_rank, 0);
  EXPECT_EQ(config->experts->routing.num_groups, 1);
}

TEST(ModelConfigTest, V2EitherNormalisesOrScales) {
  json patched = V2();
  patched["norm_topk_prob"] = true;
  auto config = Parse(patched);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->experts->routing.normalize);
  EXPECT_EQ(config->experts->routing.scaling_factor, 1.0f);
  patched["num_experts_per_tok"] = 1;
  config = Parse(patched);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->experts->routing.normalize);
  EXPECT_EQ(config->experts->routing.scaling_factor, 16.0f);
}

TEST(ModelConfigTest, OptionalPartsMayBeAbsent) {
  json patched = V3();
  for (const char* key :
       {"rope_scaling", "n_routed_experts", "quantization_config",
        "num_nextn_predict_layers", "architectures", "rope_theta",
        "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"}) {
    patched.erase(key);
  }
  const auto config = Parse(patched);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->yarn.has_value());
  EXPECT_FALSE(config->experts.has_value());
  EXPECT_FALSE(config->IsMoeLayer(60));
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_EQ(config->rope_theta, 10000);
}

TEST(ModelConfigTest, MoeLayerFrequencyCountsFromLayerZero) {
  json patched = V3();
  patched["moe_layer_freq"] = 2;
  const auto config = Parse(patched);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->IsMoeLayer(3));
  EXPECT_TRUE(config->IsMoeLayer(4));
}

TEST(ModelConfigTest, ReadsTheNewerSpellingsOfRope) {
  json patched = V3();
  patched["rope_scaling"]["rope_type"] = "yarn";
  patched["rope_scaling"].erase("type");
  EXPECT_EQ(Parse(patched)->yarn->factor, 40);
  patched["rope_scaling"]["rope_theta"] = 5000.0;
  patched["rope_parameters"] = patched["rope_scaling"];
  patched.erase("rope_scaling");
  patched.erase("rope_theta");
  EXPECT_EQ(Parse(patched)->yarn->factor, 40);
  EXPECT_EQ(Parse(patched)->rope_theta, 5000);
  patched["rope_parameters"] =
      json::parse(R"({"rope_type": "default", "rope_theta": 7000})");
  EXPECT_FALSE(Parse(patched)->yarn.has_value());
  EXPECT_EQ(Parse(patched)->rope_theta, 7000);
}

struct BadValue {
  const char* pointer;  // Of JSON, in V3's configuration.
  std::vector<json> values;
};

// "a" is the wrong type of all; null also stands for a missing field.
const BadValue kBadValues[] = {
    {"/vocab_size", {nullptr, "a", 0, -1, 1.5, 4194305, 1e300, UINT64_MAX}},
    {"/hidden_size", {nullptr, "a", 0, -1, 7168.0, 65537, INT64_MAX}},
    {"/num_hidden_layers", {nullptr, "a", 0, -1, 1025}},
    {"/num_nextn_predict_layers", {"a", -1, 17}},
    {"/intermediate_size", {nullptr, "a", 0, -1, 1048577}},
    {"/num_attention_heads", {nullptr, "a", 0, -1, 1025}},
    {"/q_lora_rank", {"a", 0, -1, 65537}},
    {"/kv_lora_rank", {nullptr, "a", 0, -1, 16385}},
    {"/qk_nope_head_dim", {nullptr, "a", 0, -1, 4097}},
    {"/qk_rope_head_dim", {nullptr, "a", 0, -1, 1, 63, 4098}},
    {"/v_head_dim", {nullptr, "a", 0, -1, 4097}},
    {"/max_position_embeddings", {nullptr, "a", 0, -1, 16777217}},
    {"/rms_norm_eps", {"a", 0, -1e-6, 2}},
    {"/rope_theta", {"a", 0, 1, -1, 1e13}},
    {"/tie_word_embeddings", {"a", 0, 1}},
    {"/rope_scaling", {"a", 1, json::array()}},
    {"/rope_scaling/factor", {nullptr, "a", 0, 0.5, -40, 1e5}},
    {"/rope_scaling/beta_fast", {"a", 0, -1, 1e7}},
    {"/rope_scaling/beta_slow", {"a", 0, -1, 33}},
    {"/rope_scaling/original_max_position_embeddings",
     {nullptr, "a", 0, -1, 1e9}},
    {"/rope_scaling/mscale", {"a", -1, 101}},
    {"/rope_scaling/mscale_all_dim", {"a", -1, 101}},
    {"/n_routed_experts", {"a", 0, -1, 1025}},
    {"/n_shared_experts", {"a", -1, 65}},
    {"/num_experts_per_tok", {nullptr, "a", 0, -1, 129, 257}},
    {"/moe_intermediate_size", {nullptr, "a", 0, -1, 262145}},
    {"/first_k_dense_replace", {nullptr, "a", -1, 1025}},
    {"/moe_layer_freq", {"a", 0, -1, 1025, json::array({0, 1})}},
    {"/n_group", {"a", 0, -1, 7, 256, 257}},
    {"/topk_group", {"a", 0, -1, 9}},
    {"/norm_topk_prob", {"a", 1}},
    {"/routed_scaling_factor", {nullptr, "a", 0, -1, 1e7}},
};

TEST(ModelConfigTest, NamesFileFieldAndValueOfEveryBadValue) {
  for (const BadValue& bad : kBadValues) {
    for (const json& value : bad.values) {
      json patched = V3();
      patched[json::json_pointer(bad.pointer)] = value;
      const absl::Status status = Parse(patched).status();
      const std::string message(status.message());
      const std::string pointer = bad.pointer;
      const std::string field = pointer.substr(pointer.rfind('/') + 1);
      SCOPED_TRACE(pointer + " = " + value.dump() + ": " + message);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(message.find("config.json: "), 0);
      EXPECT_NE(message.find(field), std::string::npos);
      EXPECT_NE(message.find("must be"), std::string::npos);
    }
  }
}

TEST(ModelConfigTest, AcceptsEveryLimit) {
  const std::pair<const char*, json> kLimits[] = {
      {"/vocab_size", 4194304},         {"/hidden_size", 65536},
      {"/num_hidden_layers", 1024},     {"/intermediate_size", 1048576},
      {"/kv_lora_rank", 16384},         {"/qk_nope_head_dim", 1},
      {"/qk_rope_head_dim", 2},         {"/v_head_dim", 4096},
      {"/rope_scaling/factor", 1},      {"/num_experts_per_tok", 128},
      {"/first_k_dense_replace", 1024}, {"/n_group", 128},
  };
  for (const auto& [pointer, value] : kLimits) {
    json patched = V3();
    patched[json::json_pointer(pointer)] = value;
    EXPECT_TRUE(Parse(patched).ok()) << pointer << Parse(patched).status();
  }
}

TEST(ModelConfigTest, UnsupportedFeaturesAreUnimplementedByName) {
  const std::pair<const char*, json> kUnsupported[] = {
      {"/architectures", json::array({"LlamaForCausalLM"})},
      {"/architectures", json::array()},
      {"/model_type", "llama"},
      {"/model_type", "kimi_k2"},
      {"/attention_bias", true},
      {"/mlp_bias", true},
      {"/hidden_act", "gelu"},
      {"/rope_interleave", false},
      {"/num_key_value_heads", 1},
      {"/topk_method", "random"},
      {"/scoring_func", "tanh"},
      {"/rope_scaling/type", "linear"},
      {"/rope_scaling/attention_factor", 1.0},
      {"/rope_scaling/truncate", false},
      {"/quantization_config/quant_method", "awq"},
      {"/quantization_config/quant_method", nullptr},
      {"/quantization_config/fmt", "e5m2"},
      {"/quantization_config/weight_block_size", json::array({64, 64})},
      {"/quantization_config/weight_block_size", nullptr},
  };
  for (const auto& [pointer, value] : kUnsupported) {
    json patched = V3();
    patched[json::json_pointer(pointer)] = value;
    const absl::Status status = Parse(patched).status();
    SCOPED_TRACE(status.ToString());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << pointer;
    const std::string text = pointer;
    EXPECT_NE(status.message().find(text.substr(text.rfind('/') + 1)),
              std::string::npos);
  }
}

TEST(ModelConfigTest, ModelTypeAndArchitecturesMustAgree) {
  json patched = V3();
  patched["model_type"] = "deepseek_v2";
  const absl::Status status = Parse(patched).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* named :
       {"model_type is \"deepseek_v2\"", "[\"DeepseekV3ForCausalLM\"]"}) {
    EXPECT_NE(status.message().find(named), std::string::npos) << status;
  }
  patched.erase("model_type");
  EXPECT_TRUE(Parse(patched).ok());
}

TEST(ModelConfigTest, RefusesEveryTruncation) {
  const std::string text = V3().dump(1);
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(ParseModelConfig(text.substr(0, size), "c").status().code(),
              absl::StatusCode::kInvalidArgument)
        << size;
  }
}

TEST(ModelConfigTest, RefusesWhatIsNoObject) {
  for (const char* text : {"[]", "1", "\"a\"", "null"}) {
    EXPECT_EQ(ParseModelConfig(text, "c").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
