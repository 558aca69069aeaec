#include "server/text/generation_config.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/text/model_folder_for_test.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using J = nlohmann::json;

TEST(GenerationConfigTest, ReadsTheDemoModels) {
  const auto config = LoadGenerationConfig(kDemoModelFolder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1));
  EXPECT_EQ(config->temperature, 0.7f);
  EXPECT_EQ(config->top_p, 0.95f);
  EXPECT_EQ(config->top_k, std::nullopt);
  EXPECT_EQ(config->min_p, std::nullopt);
}

TEST(GenerationConfigTest, WithoutTheFileOnlyEosIsKnown) {
  ModelFolderForTest folder;
  folder.Remove("generation_config.json");
  folder.Edit("config.json", [](J& j) { j["eos_token_id"] = {1, 2}; });
  const auto config = LoadGenerationConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 2));
  EXPECT_EQ(config->temperature, std::nullopt);
}

TEST(GenerationConfigTest, ItsOwnEosGoesBeforeTheModels) {
  ModelFolderForTest folder;
  folder.Edit("generation_config.json", [](J& j) {
    j["eos_token_id"] = {7, 4095};
  });
  EXPECT_THAT(LoadGenerationConfig(folder.path())->eos_token_ids,
              ElementsAre(7, 4095));
  for (const char* name : {"generation_config.json", "config.json"}) {
    folder.Edit(name, [](J& j) { j["eos_token_id"] = nullptr; });
  }
  EXPECT_THAT(LoadGenerationConfig(folder.path())->eos_token_ids, IsEmpty());
}

TEST(GenerationConfigTest, WithoutSamplingTheTemperatureIsZero) {
  ModelFolderForTest folder;
  folder.Edit("generation_config.json", [](J& j) { j["do_sample"] = false; });
  EXPECT_EQ(LoadGenerationConfig(folder.path())->temperature, 0.0f);
  folder.Edit("generation_config.json", [](J& j) {
    j = {{"top_k", 50}, {"min_p", 0.05}, {"temperature", nullptr}};
  });
  const auto config = LoadGenerationConfig(folder.path());
  EXPECT_EQ(config->temperature, std::nullopt);
  EXPECT_EQ(config->top_k, 50);
  EXPECT_EQ(config->min_p, 0.05f);
}

TEST(GenerationConfigTest, TheLimitsThemselvesAreGood) {
  ModelFolderForTest folder;
  folder.Edit("generation_config.json", [](J& j) {
    j = {{"top_k", 2147483647},
         {"min_p", 1},
         {"temperature", 100},
         {"top_p", 1}};
  });
  const auto config = LoadGenerationConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->top_k, 2147483647);
}

TEST(GenerationConfigTest, TakesTheSmallestTemperatureAndSixtyFourEosIds) {
  ModelFolderForTest folder;
  folder.Edit("generation_config.json", [](J& j) {
    j = {{"temperature", 1e-30}, {"eos_token_id", std::vector<int>(64, 1)}};
  });
  const auto config = LoadGenerationConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->temperature, 1e-30f);
  EXPECT_EQ(config->eos_token_ids.size(), 64u);
}

TEST(GenerationConfigTest, BadFieldsAreNamedWithTheirFile) {
  const std::vector<std::pair<std::string, J>> bad_fields = {
      {"temperature", -0.1},
      {"temperature", 100.5},
      {"temperature", "hot"},
      {"temperature", 1e300},
      {"top_p", 0},
      {"top_p", 1.5},
      {"top_p", 1e-60},
      {"top_p", true},
      {"top_k", -1},
      {"top_k", 2147483648},
      {"top_k", 1.5},
      {"min_p", -0.5},
      {"min_p", 1.01},
      {"do_sample", "no"},
      {"eos_token_id", -1},
      {"eos_token_id", 4096},
      {"eos_token_id", "1"},
      {"eos_token_id", {1, -1}},
      {"eos_token_id", std::vector<int>(65, 1)},
      {"temperature", 9e-31},
  };
  for (const auto& [field, value] : bad_fields) {
    ModelFolderForTest folder;
    folder.Edit("generation_config.json",
                [&field = field, &value = value](J& j) { j[field] = value; });
    const absl::Status status = LoadGenerationConfig(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/generation_config.json: " + field + ": "));
  }
}

TEST(GenerationConfigTest, AnErrorInTheModelsConfigComesThrough) {
  ModelFolderForTest folder;
  folder.Edit("config.json", [](J& j) { j["vocab_size"] = 0; });
  EXPECT_THAT(
      std::string(LoadGenerationConfig(folder.path()).status().message()),
      HasSubstr("/config.json: vocab_size: "));
}

TEST(GenerationConfigTest, TruncatedFilesAreErrors) {
  for (const std::string name : {"generation_config.json", "config.json"}) {
    ModelFolderForTest folder;
    std::string whole = folder.Read(name);
    whole.resize(whole.find_last_of('}'));
    for (size_t size = 0; size <= whole.size(); ++size) {
      folder.Write(name, std::string_view(whole).substr(0, size));
      const absl::Status status = LoadGenerationConfig(folder.path()).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
      ASSERT_THAT(std::string(status.message()), HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace baton
