#include "server/text/text_model.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/text/model_folder_for_test.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(TextModelTest, LoadsTheDemoModel) {
  const auto model = LoadTextModel(kDemoModelFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->tokenizer->vocab_size(), 4096);
  EXPECT_TRUE(model->chat_template.supported());
  EXPECT_EQ(model->generation_config.temperature, 0.7f);
  EXPECT_EQ(model->text_hash.size(), 32);
  EXPECT_EQ(model->vocab_size, 4096);
}

TEST(TextModelTest, TheLogitsMayBeWiderThanTheTokenizerButNotNarrower) {
  ModelFolderForTest folder;
  folder.Edit("config.json",
              [](nlohmann::json& json) { json["vocab_size"] = 5000; });
  EXPECT_EQ(LoadTextModel(folder.path())->vocab_size, 5000);
  folder.Edit("config.json",
              [](nlohmann::json& json) { json["vocab_size"] = 4095; });
  const absl::Status status = LoadTextModel(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/config.json: vocab_size: "));
}

TEST(TextModelTest, EveryFilesErrorComesThrough) {
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json",
                                 "generation_config.json", "config.json"}) {
    ModelFolderForTest folder;
    folder.Write(name, "{");
    const absl::Status status = LoadTextModel(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("/" + name + ": "));
  }
}

}  // namespace
}  // namespace baton
