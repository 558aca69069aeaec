// A process that holds some of the experts, which come and go.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/model/testing/model_driver.h"
#include "engine/model/testing/random_model.h"

namespace baton {
namespace {

using nlohmann::json;
using Experts = std::vector<std::vector<uint32_t>>;

std::vector<TensorToWrite> SmallTensors() {
  return RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16);
}

std::string SmallModel() {
  std::string folder = FreshTestFolder();
  WriteModel(folder, SmallV3Config(), SmallTensors());
  return folder;
}

std::unique_ptr<LoadedDeepSeekV3> Load(const LoadOptions& options) {
  auto weights = LoadedDeepSeekV3::Load(options, {});
  CHECK_OK(weights.status());
  return *std::move(weights);
}

const Experts kSome = {{0, 3, 5}, {}, {15}};

LoadOptions SomeOf(const std::string& folder) {
  return {.folder = folder, .drafter = true, .resident_experts = kSome};
}

TEST(ResidentExpertsTest, OnlyThoseAskedForAreHereAtFirst) {
  const std::string folder = SmallModel();
  const auto some = Load(SomeOf(folder));
  const auto all = Load({.folder = folder, .drafter = true});
  EXPECT_EQ(some->info().num_experts, 16u);
  EXPECT_EQ(some->info().num_expert_layers, 3u);
  EXPECT_EQ(some->info().fingerprint, all->info().fingerprint);
  EXPECT_EQ(some->expert_bytes(), all->expert_bytes());
  EXPECT_EQ(some->expert_bytes(), 2u * (48 * 64 + 64 * 24));
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint32_t e = 0; e < 16; ++e) {
      const bool expected = std::ranges::binary_search(kSome[layer], e);
      EXPECT_EQ(some->HasExpert(layer, e), expected) << layer << " " << e;
      EXPECT_TRUE(all->HasExpert(layer, e));
    }
  }
}

TEST(ResidentExpertsTest, TheConfigurationTellsWhatToChooseBy) {
  const std::string folder = SmallModel();
  const auto weights = Load({.folder = folder, .drafter = true});
  std::filesystem::remove(folder + "/model.safetensors");
  const auto info =
      LoadedDeepSeekV3::ReadInfo({.folder = folder, .drafter = true});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->num_experts, weights->info().num_experts);
  EXPECT_EQ(info->num_expert_layers, weights->info().num_expert_layers);
  EXPECT_EQ(info->vocab_size, weights->info().vocab_size);
  EXPECT_EQ(info->cache.block_bytes(), weights->info().cache.block_bytes());
  EXPECT_EQ(info->fingerprint, "");
}

TEST(ResidentExpertsTest, RefusesExpertsThatThereAreNot) {
  const std::string folder = SmallModel();
  for (const Experts& bad : {Experts{{0}, {1}},             // Too few layers.
                             Experts{{0}, {1}, {2}, {3}},   // Too many.
                             Experts{{0}, {1}, {16}},       // No such expert.
                             Experts{{0}, {2, 1}, {3}},     // Not ascending.
                             Experts{{0}, {1, 1}, {3}}}) {  // Twice.
    LoadOptions options = SomeOf(folder);
    options.resident_experts = bad;
    const absl::Status status = LoadedDeepSeekV3::Check(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(LoadedDeepSeekV3::Load(options, {}).status(), status);
  }
}

TEST(ResidentExpertsTest, OneThatIsAddedIsHereUntilItIsRemoved) {
  const auto weights = Load(SomeOf(SmallModel()));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(weights->AddExpert(1, 9).ok());
    EXPECT_TRUE(weights->HasExpert(1, 9));
    EXPECT_TRUE(weights->AddExpert(1, 9).ok());  // Nothing to do.
    EXPECT_FALSE(weights->HasExpert(0, 9));
    weights->RemoveExpert(1, 9);
    EXPECT_FALSE(weights->HasExpert(1, 9));
  }
  // The one from the start goes the same way.
  weights->RemoveExpert(0, 3);
  EXPECT_FALSE(weights->HasExpert(0, 3));
  EXPECT_TRUE(weights->AddExpert(0, 3).ok());
  EXPECT_TRUE(weights->HasExpert(0, 3));
}

void ExpectNamed(const absl::Status& status, absl::StatusCode code,
                 const std::string& name) {
  EXPECT_EQ(status.code(), code);
  EXPECT_NE(status.message().find(name), std::string::npos) << status;
}

TEST(ResidentExpertsTest, AFileThatCannotBeReadAnyMoreIsNamed) {
  const std::string folder = SmallModel();
  const std::string file = folder + "/model.safetensors";
  const auto weights = Load(SomeOf(folder));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  for (const uint32_t layer : {0u, 2u}) {
    ExpectNamed(weights->AddExpert(layer, 7), absl::StatusCode::kDataLoss,
                file);
    EXPECT_FALSE(weights->HasExpert(layer, 7));
  }
  EXPECT_TRUE(weights->HasExpert(0, 5));
}

TEST(ResidentExpertsTest, AFolderThatIsRemovedIsStillRead) {
  const std::string folder = SmallModel();
  const auto weights = Load(SomeOf(folder));
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(weights->AddExpert(2, 7).ok());
  EXPECT_TRUE(weights->HasExpert(2, 7));
}

// Whoever holds it all finds it at the load; others, when they need it.
TEST(ResidentExpertsTest, AValueThatIsNotFiniteIsNamed) {
  const std::string name = "model.layers.2.mlp.experts.7.up_proj.weight";
  std::vector<TensorToWrite> tensors = SmallTensors();
  TensorToWrite& tensor =
      *std::ranges::find(tensors, name, &TensorToWrite::name);
  std::vector<float> values(24 * 64, 1);
  values.back() = std::numeric_limits<float>::infinity();
  tensor = F32Tensor(name, {24, 64}, values);
  const std::string folder = FreshTestFolder();
  WriteModel(folder, SmallV3Config(), tensors);
  const auto weights = Load(SomeOf(folder));
  ExpectNamed(weights->AddExpert(1, 7), absl::StatusCode::kInvalidArgument,
              name);
  EXPECT_FALSE(weights->HasExpert(1, 7));
  EXPECT_TRUE(weights->AddExpert(1, 6).ok());
}

TEST(ResidentExpertsDeathTest, ASlotWithAnExpertThatIsNotHereIsOurBug) {
  Experts resident(3, std::vector<uint32_t>(16));
  for (std::vector<uint32_t>& layer : resident) {
    for (uint32_t e = 0; e < 16; ++e) layer[e] = e;
  }
  std::erase(resident[1], 11);
  const auto driver =
      ModelDriver::Create({.load = {.folder = SmallModel(),
                                    .drafter = true,
                                    .resident_experts = resident}});
  ASSERT_TRUE(driver.ok()) << driver.status();
  const std::vector<uint32_t> token = {1};
  const ModelDriver::Piece piece = {(*driver)->NewSequence(), token};
  EXPECT_DEATH((*driver)->Step({&piece, 1}),
               "expert 11 of expert layer 1 has a slot here");
}

TEST(ResidentExpertsDeathTest, WhatIsHereForGoodDoesNotMove) {
  const auto all = Load({.folder = SmallModel()});
  EXPECT_DEATH(all->AddExpert(0, 1).IgnoreError(), "for good");
  EXPECT_DEATH(all->RemoveExpert(0, 1), "for good");
  const auto some = Load(SomeOf(SmallModel()));
  EXPECT_DEATH(some->RemoveExpert(0, 1), "expert 1 is not here");
  EXPECT_DEATH(some->HasExpert(3, 1), "CHECK failed");
  EXPECT_DEATH(some->HasExpert(0, 16), "CHECK failed");
}

// Of this process, in memory now.
int64_t ResidentBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// What leaves memory when this is destroyed.
int64_t BytesGivenBack(std::unique_ptr<LoadedDeepSeekV3> weights) {
  const int64_t before = ResidentBytes();
  weights.reset();
  return before - ResidentBytes();
}

TEST(ResidentExpertsTest, MemoryIsOfTheExpertsThatAreHere) {
  json config = SmallV3Config();
  config["first_k_dense_replace"] = 2;
  config["num_nextn_predict_layers"] = 0;
  config["hidden_size"] = 256;
  config["moe_intermediate_size"] = 2048;
  const std::string folder = FreshTestFolder();
  WriteModel(folder, config, RandomTensors(config, 1, TensorDtype::kBf16));
  LoadOptions options = {.folder = folder, .weights = WeightStorage::kF32};
  auto all = Load(options);
  options.resident_experts = {{2, 3}};
  auto some = Load(options);
  const auto expert_bytes = static_cast<int64_t>(some->expert_bytes());
  EXPECT_EQ(expert_bytes, 3 * 256 * 2048 * 4);
  for (uint32_t e = 4; e < 14; ++e) ASSERT_TRUE(some->AddExpert(0, e).ok());
  const int64_t before = ResidentBytes();
  for (uint32_t e = 4; e < 14; ++e) some->RemoveExpert(0, e);
  const int64_t removed = before - ResidentBytes();
  EXPECT_GE(removed, 10 * expert_bytes - (1 << 20));
  EXPECT_LE(removed, 10 * expert_bytes + (1 << 20));
  const int64_t of_some = BytesGivenBack(std::move(some));
  const int64_t of_all = BytesGivenBack(std::move(all));
  EXPECT_GE(of_all - of_some, 13 * expert_bytes);
}

}  // namespace
}  // namespace baton
