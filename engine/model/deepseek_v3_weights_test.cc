#include "engine/model/deepseek_v3_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/tensor_check.h"
#include "engine/model/tensor_files.h"
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
  EXPECT_EQ(dense.moe.experts.num_experts(), 0);
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
  EXPECT_EQ(layer.moe.experts.num_experts(), 16);
  EXPECT_EQ(layer.moe.experts.Find(15)->gate_up.out(), 2 * 24);
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
    return weights->layers[1].moe.experts.Find(0)->down.dtype();
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
  EXPECT_EQ(drafter.layer.moe.experts.num_experts(), 16);
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

// A model folder, and what packs it.
struct Folder {
  Folder(const json& config_json, const std::vector<TensorToWrite>& written)
      : path(FreshTestFolder()),
        config(*ParseModelConfig(config_json.dump(), "config.json")) {
    WriteModel(path, config_json, written);
    tensors.emplace(*ModelTensors::Open(path));
  }

  const std::string path;
  const ModelConfig config;
  std::optional<ModelTensors> tensors;
};

bool SameBits(const PackedWeight& a, const PackedWeight& b) {
  return a.out() == b.out() && a.in() == b.in() && a.dtype() == b.dtype() &&
         std::memcmp(a.panels(), b.panels(), a.size_bytes()) == 0;
}

// Of expert 3 one matrix is FP8, of expert 4 all but one are float32.
std::vector<TensorToWrite> MixedTensors() {
  auto tensors = RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16);
  std::vector<TensorToWrite> scales;
  for (TensorToWrite& tensor : tensors) {
    if (tensor.name.ends_with("experts.3.gate_proj.weight")) {
      tensor.dtype = TensorDtype::kF8E4M3;
      tensor.bytes.resize(tensor.bytes.size() / 2);
      for (std::byte& byte : tensor.bytes) byte &= std::byte{0xb7};
      scales.push_back(F32Tensor(tensor.name + "_scale_inv", {1, 1}, {0.5f}));
    } else if (tensor.name.ends_with("experts.4.gate_proj.weight") ||
               tensor.name.ends_with("experts.4.down_proj.weight")) {
      tensor = F32Tensor(tensor.name, tensor.shape,
                         std::vector<float>(tensor.bytes.size() / 2, 0.1f));
    }
  }
  tensors.insert(tensors.end(), scales.begin(), scales.end());
  return tensors;
}

TEST(DeepSeekV3WeightsTest, AnExpertByItselfHasTheBitsOfAllTogether) {
  json config = SmallV3Config();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"weight_block_size", {128, 128}}};
  Folder folder(config, MixedTensors());
  for (const WeightStorage storage :
       {WeightStorage::kAsStored, WeightStorage::kF32}) {
    const WeightOptions options = {.storage = storage,
                                   .parts = ModelParts::kMainAndDrafter};
    const auto all =
        LoadDeepSeekV3Weights(folder.config, *folder.tensors, options, {});
    ASSERT_TRUE(all.ok()) << all.status();
    const auto files = TensorFiles::Open(*folder.tensors);
    ASSERT_TRUE(files.ok()) << files.status();
    size_t max_bytes = 0;
    for (const int layer : ExpertLayers(folder.config, options.parts)) {
      const LayerExperts& experts =
          (layer < 3 ? all->layers[layer] : all->drafter->layer).moe.experts;
      for (uint32_t e = 0; e < 16; ++e) {
        const auto tensors = (*files)->Read(ExpertPrefix(layer, e));
        ASSERT_TRUE(tensors.ok()) << tensors.status();
        const auto alone = LoadExpert(*tensors, storage, layer, e);
        ASSERT_TRUE(alone.ok()) << alone.status();
        const MlpWeights& together = *experts.Find(e);
        EXPECT_TRUE(SameBits(alone->gate_up, together.gate_up)) << e;
        EXPECT_TRUE(SameBits(alone->down, together.down)) << e;
        max_bytes = std::max(max_bytes, together.gate_up.size_bytes() +
                                            together.down.size_bytes());
      }
    }
    EXPECT_EQ(MaxExpertBytes(folder.config, *folder.tensors, options),
              max_bytes);
  }
}

TEST(DeepSeekV3WeightsTest, PacksTheResidentExpertsAlone) {
  Folder folder(SmallV3Config(),
                RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16));
  const std::vector<std::vector<uint32_t>> resident = {{0, 7}, {}, {15}};
  const auto weights = LoadDeepSeekV3Weights(
      folder.config, *folder.tensors,
      {.parts = ModelParts::kMainAndDrafter, .resident_experts = resident}, {});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(ExpertLayers(folder.config, ModelParts::kMainAndDrafter),
            (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(ExpertLayers(folder.config, ModelParts::kMain),
            (std::vector<int>{1, 2}));
  const LayerWeights* const layers[] = {
      &weights->layers[1], &weights->layers[2], &weights->drafter->layer};
  for (size_t i = 0; i < resident.size(); ++i) {
    const LayerExperts& experts = layers[i]->moe.experts;
    ASSERT_EQ(experts.num_experts(), 16);
    for (uint32_t e = 0; e < 16; ++e) {
      const bool expected = std::ranges::binary_search(resident[i], e);
      EXPECT_EQ(experts.Find(e) != nullptr, expected) << i << " " << e;
    }
  }
}

}  // namespace
}  // namespace baton
