#include "engine/model/deepseek_v3_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/tensor_check.h"
#include "engine/model/testing/random_model.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

using nlohmann::json;

absl::StatusOr<DeepSeekV3Weights> Load(
    const json& config_json, const std::vector<TensorToWrite>& tensors,
    WeightStorage storage = WeightStorage::kAsStored, CpuContext cpu = {},
    ModelParts parts = ModelParts::kMain) {
  const std::string folder = FreshTestFolder();
  WriteModel(folder, config_json, tensors);
  const auto config = ParseModelConfig(config_json.dump(), "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  const auto opened = ModelTensors::Open(folder);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return LoadDeepSeekV3Weights(*config, *opened,
                               {.storage = storage, .parts = parts}, cpu);
}

TEST(DeepSeekV3WeightsTest, PacksEveryPartInItsShape) {
  const auto weights = Load(
      SmallV3Config(), RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->embedding.rows, 160);
  EXPECT_EQ(weights->head.out(), 160);
  ASSERT_EQ(weights->layers.size(), 3);
  EXPECT_FALSE(weights->drafter.has_value());
  const LayerWeights& dense = weights->layers[0];
  EXPECT_TRUE(dense.moe.experts.empty());
  EXPECT_EQ(dense.dense.gate_up.out(), 2 * 96);
  EXPECT_EQ(dense.dense.width(), 96);
  const LayerWeights& layer = weights->layers[1];
  EXPECT_EQ(layer.attention.down.out(), 48 + 32 + 16);
  EXPECT_EQ(layer.attention.query.in(), 48);
  ASSERT_EQ(layer.attention.key_absorb.size(), 4);
  EXPECT_EQ(layer.attention.key_absorb[3].out(), 32);
  EXPECT_EQ(layer.attention.key_absorb[3].in(), 16);
  EXPECT_EQ(layer.attention.value_up[3].out(), 16);
  EXPECT_EQ(layer.attention.value_up[3].in(), 32);
  EXPECT_EQ(layer.moe.experts.size(), 16);
  EXPECT_EQ(layer.moe.experts[15].gate_up.out(), 2 * 24);
  EXPECT_EQ(layer.moe.shared.width(), 24);
  EXPECT_EQ(layer.moe.router_bias.size(), 16);
}

TEST(DeepSeekV3WeightsTest, QueryWithoutRankComesFromTheInput) {
  json config = SmallV2Config();
  config["q_lora_rank"] = nullptr;
  const auto weights =
      Load(config, RandomTensors(config, 1, TensorDtype::kBf16));
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& layer = weights->layers[1];
  EXPECT_EQ(layer.attention.down.out(), 32 + 16);
  EXPECT_EQ(layer.attention.query.in(), 64);
  EXPECT_TRUE(layer.attention.q_norm.empty());
  EXPECT_TRUE(layer.moe.router_bias.empty());
}

TEST(DeepSeekV3WeightsTest, StorageDecidesTheDtypeInMemory) {
  const auto bf16 = RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16);
  const auto f32 = RandomTensors(SmallV3Config(), 1, TensorDtype::kF32);
  const auto dtype_of = [](const auto& weights) {
    return weights->layers[1].moe.experts[0].down.dtype();
  };
  EXPECT_EQ(dtype_of(Load(SmallV3Config(), bf16)), WeightDtype::kBf16);
  EXPECT_EQ(dtype_of(Load(SmallV3Config(), f32)), WeightDtype::kF32);
  EXPECT_EQ(dtype_of(Load(SmallV3Config(), bf16, WeightStorage::kF32)),
            WeightDtype::kF32);
  EXPECT_EQ(Load(SmallV3Config(), f32, WeightStorage::kBf16).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(DeepSeekV3WeightsTest, AnyTensorThatIsNotFiniteFailsTheLoad) {
  const std::vector<TensorToWrite> all =
      RandomTensors(SmallV3Config(), 1, TensorDtype::kF32);
  ThreadPool threads({.num_threads = 2});
  for (size_t i = 0; i < all.size(); i += 7) {
    std::vector<TensorToWrite> tensors = all;
    std::vector<float> values(all[i].bytes.size() / sizeof(float), 1);
    values.back() = std::numeric_limits<float>::infinity();
    tensors[i] = F32Tensor(all[i].name, all[i].shape, values);
    const absl::Status status =
        Load(SmallV3Config(), tensors, WeightStorage::kAsStored,
             {.threads = &threads}, ModelParts::kMainAndDrafter)
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(all[i].name), std::string::npos) << status;
  }
}

absl::StatusOr<DeepSeekV3Weights> LoadWithDrafter(
    const json& config, const std::vector<TensorToWrite>& tensors) {
  return Load(config, tensors, WeightStorage::kAsStored, {},
              ModelParts::kMainAndDrafter);
}

TEST(DeepSeekV3WeightsTest, PacksTheDrafterInItsShape) {
  const auto weights = LoadWithDrafter(
      SmallV3Config(), RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16));
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_TRUE(weights->drafter.has_value());
  const DrafterWeights& drafter = *weights->drafter;
  EXPECT_EQ(drafter.embedding_norm.size(), 64);
  EXPECT_EQ(drafter.hidden_norm.size(), 64);
  EXPECT_EQ(drafter.projection.out(), 64);
  EXPECT_EQ(drafter.projection.in(), 128);
  EXPECT_EQ(drafter.norm.size(), 64);
  EXPECT_EQ(drafter.layer.attention_norm.size(), 64);
  EXPECT_EQ(drafter.layer.moe.experts.size(), 16);
  EXPECT_NE(&weights->drafter_embedding(), &weights->embedding);
  EXPECT_EQ(weights->drafter_embedding().rows, 160);
  EXPECT_NE(&weights->drafter_head(), &weights->head);
  EXPECT_EQ(weights->drafter_head().out(), 160);
}

TEST(DeepSeekV3WeightsTest, CopiesOfTheMainModelsEndsAreNotKeptTwice) {
  for (const bool tied : {false, true}) {
    json config = SmallV3Config();
    config["tie_word_embeddings"] = tied;
    std::vector<TensorToWrite> tensors =
        RandomTensors(config, 1, TensorDtype::kBf16);
    const auto get = [&](const std::string& name) -> TensorToWrite& {
      return *std::ranges::find(tensors, name, &TensorToWrite::name);
    };
    const std::string embedding = "model.embed_tokens.weight";
    get("model.layers.3.embed_tokens.weight").bytes = get(embedding).bytes;
    get("model.layers.3.shared_head.head.weight").bytes =
        get(tied ? embedding : "lm_head.weight").bytes;
    const auto weights = LoadWithDrafter(config, tensors);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(&weights->drafter_embedding(), &weights->embedding);
    EXPECT_EQ(&weights->drafter_head(), &weights->head);
  }
}

}  // namespace
}  // namespace baton
