#include "engine/model/tensor_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/testing/random_model.h"

namespace baton {
namespace {

using nlohmann::json;

class TensorCheckTest : public testing::Test {
 protected:
  absl::Status Check(WeightStorage storage = WeightStorage::kAsStored,
                     ModelParts parts = ModelParts::kMain) {
    const std::string folder = FreshTestFolder();
    WriteModel(folder, config_, tensors_);
    const auto config = ParseModelConfig(config_.dump(), "config.json");
    if (!config.ok()) return config.status();
    const auto tensors = ModelTensors::Open(folder);
    if (!tensors.ok()) return tensors.status();
    return CheckTensors(*config, *tensors, storage, parts);
  }

  TensorToWrite& Get(const std::string& name) {
    return *std::ranges::find(tensors_, name, &TensorToWrite::name);
  }
  void Erase(const std::string& name) {
    std::erase_if(tensors_,
                  [&](const TensorToWrite& t) { return t.name == name; });
  }
  void UseFp8Blocks() {
    config_["quantization_config"] = json::parse(
        R"({"quant_method": "fp8", "weight_block_size": [128, 128]})");
  }
  void MakeFp8(const std::string& name, int64_t out, int64_t in) {
    Get(name).dtype = TensorDtype::kF8E4M3;
    Get(name).bytes.resize(out * in);
  }

  json config_ = SmallV3Config();
  std::vector<TensorToWrite> tensors_ =
      RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16);
};

constexpr char kUp[] = "model.layers.1.mlp.experts.3.up_proj.weight";

TEST_F(TensorCheckTest, AcceptsTheModel) {
  EXPECT_TRUE(Check().ok()) << Check();
  EXPECT_TRUE(Check(WeightStorage::kBf16).ok());
}

TEST_F(TensorCheckTest, EveryTensorIsNeededByName) {
  const std::vector<TensorToWrite> all = tensors_;
  ASSERT_GT(all.size(), 150);
  for (size_t i = 0; i < all.size(); i += 3) {
    tensors_ = all;
    tensors_.erase(tensors_.begin() + static_cast<ptrdiff_t>(i));
    const absl::Status status = Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_NE(status.message().find(all[i].name + " is missing"),
              std::string::npos)
        << status;
  }
}

TEST_F(TensorCheckTest, MtpLayersMayBeAbsentAsAWhole) {
  std::erase_if(tensors_, [](const TensorToWrite& tensor) {
    return tensor.name.starts_with("model.layers.3.");
  });
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(TensorCheckTest, TheDrafterMustBeThereIfItIsWanted) {
  EXPECT_TRUE(
      Check(WeightStorage::kAsStored, ModelParts::kMainAndDrafter).ok());
  std::erase_if(tensors_, [](const TensorToWrite& tensor) {
    return tensor.name.starts_with("model.layers.3.");
  });
  const absl::Status status =
      Check(WeightStorage::kAsStored, ModelParts::kMainAndDrafter);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(
      status.message().find("tensor model.layers.3.enorm.weight is missing"),
      std::string::npos)
      << status;
}

TEST_F(TensorCheckTest, AnMtpLayerCannotPassForAnOrdinaryOne) {
  config_["num_hidden_layers"] = 4;  // Layer 3 is the MTP layer.
  const absl::Status status = Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* named :
       {"tensor model.layers.3.eh_proj.weight is of an MTP layer",
        "num_hidden_layers = 4"}) {
    EXPECT_NE(status.message().find(named), std::string::npos) << status;
  }
  for (const char* part :
       {"eh_proj.weight", "embed_tokens.weight", "enorm.weight", "hnorm.weight",
        "shared_head.head.weight"}) {
    EXPECT_NE(Check().message().find(part), std::string::npos) << Check();
    Erase(std::string("model.layers.3.") + part);
  }
  Erase("model.layers.3.shared_head.norm.weight");
  EXPECT_TRUE(Check().ok()) << "nothing shows it any more: " << Check();
}

TEST_F(TensorCheckTest, ALayersTensorWithoutAPlaceIsRefused) {
  const auto refusal = [this](const char* key, const json& value) {
    const json good = config_;
    config_[key] = value;
    const absl::Status status = Check();
    config_ = good;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    return std::string(status.message());
  };
  EXPECT_NE(refusal("n_shared_experts", 0).find("mlp.shared_experts."),
            std::string::npos);
  EXPECT_NE(refusal("topk_method", "greedy").find("e_score_correction_bias"),
            std::string::npos);
  // Layer 2 would be an MTP layer, or nobody's.
  config_["num_nextn_predict_layers"] = 0;
  const std::string beyond = refusal("num_hidden_layers", 2);
  EXPECT_NE(beyond.find("tensor model.layers.2."), std::string::npos);
  EXPECT_NE(beyond.find("num_hidden_layers = 2"), std::string::npos);
  // Layer 3 is an MTP layer, which nobody needs.
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(TensorCheckTest, OtherTensorsAreIgnored) {
  tensors_.push_back(F32Tensor("model.layers.0.rotary_emb.inv_freq", {1}, {1}));
  EXPECT_TRUE(Check().ok()) << Check();
}

TEST_F(TensorCheckTest, NamesAWrongShape) {
  std::swap(Get(kUp).shape[0], Get(kUp).shape[1]);
  const absl::Status status = Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(
      status.message().find(std::string("model.safetensors: tensor ") + kUp +
                            " is [64, 24], but config.json gives [24, 64]"),
      std::string::npos)
      << status;
}

TEST_F(TensorCheckTest, NamesAWrongDtype) {
  Get("model.norm.weight").dtype = TensorDtype::kF16;
  EXPECT_NE(Check().message().find(
                "model.norm.weight is F16, but must be BF16 or F32"),
            std::string::npos)
      << Check();
}

TEST_F(TensorCheckTest, Bf16StorageRefusesWhatItWouldRound) {
  Get(kUp) = F32Tensor(kUp, {24, 64}, std::vector<float>(24 * 64));
  EXPECT_TRUE(Check().ok());
  const absl::Status status = Check(WeightStorage::kBf16);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(kUp), std::string::npos);
}

TEST_F(TensorCheckTest, Fp8NeedsTheConfigurationAndScales) {
  MakeFp8(kUp, 24, 64);
  EXPECT_NE(Check().message().find("has no quantization_config"),
            std::string::npos)
      << Check();
  UseFp8Blocks();
  const std::string scale = std::string(kUp) + "_scale_inv";
  EXPECT_NE(Check().message().find(scale + " is missing"), std::string::npos)
      << Check();
  tensors_.push_back(F32Tensor(scale, {1, 1}, {0.5f}));
  EXPECT_TRUE(Check().ok()) << Check();
  Get(scale) = F32Tensor(scale, {1, 2}, {0.5f, 0.5f});
  EXPECT_NE(Check().message().find("[1, 2]"), std::string::npos) << Check();
  Get(scale) = Bf16Tensor(scale, {1, 1}, {0.5f});
  EXPECT_NE(Check().message().find("is BF16, but must be F32"),
            std::string::npos)
      << Check();
}

TEST_F(TensorCheckTest, OnlyProjectionsMayBeFp8) {
  UseFp8Blocks();
  const std::string router = "model.layers.1.mlp.gate.weight";
  MakeFp8(router, 16, 64);
  EXPECT_NE(Check().message().find(router + " is F8_E4M3"), std::string::npos)
      << Check();
}

TEST_F(TensorCheckTest, ATiedModelNeedsNoHead) {
  Erase("lm_head.weight");
  EXPECT_EQ(Check().code(), absl::StatusCode::kNotFound);
  config_["tie_word_embeddings"] = true;
  EXPECT_TRUE(Check().ok()) << Check();
}

}  // namespace
}  // namespace baton
