#include "engine/model/deepseek_v3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"
#include "engine/model/testing/random_model.h"
#include "engine/model/testing/reference_forward.h"

namespace baton {
namespace {

using nlohmann::json;

// A configuration of the family, as changes to SmallV3Config or SmallV2Config.
struct FamilyCase {
  const char* name;
  bool v2;
  const char* patch;
  TensorDtype dtype = TensorDtype::kBf16;
};

void PrintTo(const FamilyCase& family, std::ostream* out) {
  *out << family.name;
}

const FamilyCase kFamily[] = {
    {"V3", false, "{}"},
    {"V3InFloat32", false, "{}", TensorDtype::kF32},
    {"V3WithoutMtp", false, R"({"num_nextn_predict_layers": 0})"},
    {"V3OneGroup", false, R"({"n_group": 1, "topk_group": 1})"},
    {"V3NotNormalised", false, R"({"norm_topk_prob": false})"},
    {"V3AllExperts", false,
     R"({"n_group": 1, "topk_group": 1, "num_experts_per_tok": 16})"},
    {"V3OneExpert", false,
     R"({"n_group": 1, "topk_group": 1, "n_routed_experts": 1,
         "num_experts_per_tok": 1})"},
    {"V3TopOne", false, R"({"num_experts_per_tok": 1})"},
    {"V3SoftmaxWithBias", false, R"({"scoring_func": "softmax"})"},
    {"V3GreedySigmoid", false, R"({"topk_method": "greedy"})"},
    {"V3Tied", false, R"({"tie_word_embeddings": true})"},
    {"V3WithoutYarn", false, R"({"rope_scaling": null})"},
    {"V3AmplitudeNotOne", false,
     R"({"rope_scaling": {"mscale": 1.0, "mscale_all_dim": 0.5}})"},
    {"V3YarnDefaults", false,
     R"({"rope_scaling": {"mscale": null, "mscale_all_dim": null,
                          "beta_fast": null, "beta_slow": null}})"},
    {"V3OddSizes", false,
     R"({"vocab_size": 131, "hidden_size": 100, "num_attention_heads": 3,
         "num_key_value_heads": 3, "q_lora_rank": 51, "kv_lora_rank": 37,
         "qk_nope_head_dim": 20, "qk_rope_head_dim": 6, "v_head_dim": 24,
         "intermediate_size": 77, "moe_intermediate_size": 19,
         "n_routed_experts": 15, "n_group": 5, "topk_group": 3,
         "num_experts_per_tok": 5})"},
    {"V3LeastSizes", false,
     R"({"vocab_size": 2, "hidden_size": 3, "num_attention_heads": 1,
         "num_key_value_heads": 1, "q_lora_rank": 1, "kv_lora_rank": 1,
         "qk_nope_head_dim": 1, "qk_rope_head_dim": 2, "v_head_dim": 1,
         "intermediate_size": 1, "moe_intermediate_size": 1})"},
    {"V3WideSizes", false,
     R"({"hidden_size": 1030, "q_lora_rank": 520, "num_hidden_layers": 2,
         "intermediate_size": 1040, "num_nextn_predict_layers": 0})"},
    {"V3EverySecondLayer", false,
     R"({"num_hidden_layers": 5, "moe_layer_freq": 2})"},
    {"V3WithoutSharedExperts", false, R"({"n_shared_experts": null})"},
    {"V3Dense", false, R"({"n_routed_experts": null})"},
    {"V3DenseByCount", false, R"({"first_k_dense_replace": 3})"},
    {"V3ExpertsFromLayerZero", false, R"({"first_k_dense_replace": 0})"},
    {"V2", true, "{}"},
    {"V2InFloat32", true, "{}", TensorDtype::kF32},
    {"V2Lite", true,
     R"({"q_lora_rank": null, "topk_method": "greedy", "n_group": 1,
         "topk_group": 1, "routed_scaling_factor": 1.0})"},
    {"V2WithoutQueryRank", true, R"({"q_lora_rank": null})"},
    {"V2TiedOddSizes", true,
     R"({"tie_word_embeddings": true, "q_lora_rank": null,
         "vocab_size": 97, "hidden_size": 52, "num_attention_heads": 5,
         "num_key_value_heads": 5, "kv_lora_rank": 20,
         "qk_nope_head_dim": 12, "qk_rope_head_dim": 10, "v_head_dim": 7,
         "intermediate_size": 33, "moe_intermediate_size": 9,
         "rope_scaling": null, "n_routed_experts": 12, "n_group": 3,
         "topk_group": 2, "num_experts_per_tok": 3})"},
};

class FamilyTest : public testing::TestWithParam<FamilyCase> {};

void ExpectNear(const std::vector<ModelDriver::Logits>& logits,
                const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(logits.size(), expected.size());
  double error = 0;
  double size = 0;
  for (size_t p = 0; p < logits.size(); ++p) {
    for (size_t i = 0; i < logits[p].size(); ++i) {
      ASSERT_TRUE(std::isfinite(logits[p][i])) << p << " " << i;
      error = std::max(error, std::fabs(logits[p][i] - expected[p][i]));
      size = std::max(size, std::fabs(expected[p][i]));
    }
  }
  std::cout << "greatest error " << error << " of " << size << '\n';
  EXPECT_GT(size, 0.1);
  EXPECT_LT(error, 2e-4);
}

constexpr int kPromptTokens = 70;  // Of the 100.

// What the main model gives, and what the drafter gives behind all tokens but
// the first, in chunks of 33.
struct Outputs {
  std::vector<ModelDriver::Logits> main;
  std::vector<ModelDriver::Logits> drafted;
};

Outputs RunChunks(ModelDriver* driver, std::span<const uint32_t> tokens) {
  constexpr size_t kChunk = 33;
  Outputs outputs;
  const int sequence = driver->NewSequence(kPromptTokens);
  std::vector<int32_t> rows(kChunk);
  std::iota(rows.begin(), rows.end(), 0);
  const size_t hidden_size = driver->info().hidden_size;
  for (size_t first = 0; first < tokens.size(); first += kChunk) {
    const auto chunk =
        tokens.subspan(first, std::min(kChunk, tokens.size() - first));
    const ModelDriver::Piece piece = {sequence, chunk};
    ModelDriver::Output step = driver->StepWithHidden(
        {&piece, 1}, std::span(rows).first(chunk.size()));
    std::ranges::move(step.logits, std::back_inserter(outputs.main));
    if (!driver->info().has_drafter) continue;
    const size_t num_drafts = std::min(chunk.size(), tokens.size() - first - 1);
    const ModelDriver::Piece behind = {sequence,
                                       tokens.subspan(first + 1, num_drafts),
                                       static_cast<int>(first) + 1};
    std::ranges::move(
        driver->DraftLogits(
            {&behind, 1},
            std::span(step.hidden).first(num_drafts * hidden_size),
            std::span(rows).first(num_drafts)),
        std::back_inserter(outputs.drafted));
  }
  return outputs;
}

// 100 positions, in float32 against double.
TEST_P(FamilyTest, AgreesWithTheReference) {
  const FamilyCase& family = GetParam();
  json config = family.v2 ? SmallV2Config() : SmallV3Config();
  config.merge_patch(json::parse(family.patch));
  const std::string folder = FreshTestFolder();
  WriteModel(folder, config, RandomTensors(config, 1, family.dtype));
  std::mt19937 random(1);
  std::vector<uint32_t> tokens(100);
  for (uint32_t& token : tokens) {
    token = random() % config["vocab_size"].get<uint32_t>();
  }
  const ReferenceResult expected = ReferenceForward(folder, tokens);
  ASSERT_GT(expected.min_route_margin, 1e-6) << "take another seed";

  const bool has_drafter = !expected.draft_logits.empty();
  EXPECT_EQ(has_drafter, config.value("num_nextn_predict_layers", json()) == 1);
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
    SCOPED_TRACE(NumericsName(numerics));
    auto driver = ModelDriver::Create({.load = {.folder = folder,
                                                .cache_dtype = CacheDtype::kF32,
                                                .numerics = numerics,
                                                .max_rows = 33,
                                                .max_logits_rows = 33,
                                                .drafter = has_drafter},
                                       .isa = SupportedVectorIsas().back()});
    ASSERT_TRUE(driver.ok()) << driver.status();
    const Outputs outputs = RunChunks(driver->get(), tokens);
    ExpectNear(outputs.main, expected.logits);
    if (has_drafter) ExpectNear(outputs.drafted, expected.draft_logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FamilyTest, testing::ValuesIn(kFamily),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace baton
