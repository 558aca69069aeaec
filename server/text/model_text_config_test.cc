#include "server/text/model_text_config.h"

#include <string>
#include <utility>
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

TEST(ModelTextConfigTest, ReadsTheDemoModels) {
  const auto config = LoadModelTextConfig(kDemoModelFolder);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 4096);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1));
}

TEST(ModelTextConfigTest, EosMayBeSeveralOrNone) {
  ModelFolderForTest folder;
  folder.Edit("config.json", [](J& j) { j["eos_token_id"] = {1, 2}; });
  EXPECT_THAT(LoadModelTextConfig(folder.path())->eos_token_ids,
              ElementsAre(1, 2));
  folder.Edit("config.json", [](J& j) { j.erase("eos_token_id"); });
  EXPECT_THAT(LoadModelTextConfig(folder.path())->eos_token_ids, IsEmpty());
}

TEST(ModelTextConfigTest, BadFieldsAreNamedWithTheirFile) {
  const std::vector<std::pair<std::string, J>> bad_fields = {
      {"vocab_size", 0},          {"vocab_size", -5},
      {"vocab_size", nullptr},    {"vocab_size", 1LL << 40},
      {"vocab_size", "4k"},       {"eos_token_id", 4096},
      {"eos_token_id", {1, "2"}}, {"eos_token_id", J::object()},
  };
  for (const auto& [field, value] : bad_fields) {
    ModelFolderForTest folder;
    folder.Edit("config.json",
                [&field = field, &value = value](J& j) { j[field] = value; });
    const absl::Status status = LoadModelTextConfig(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/config.json: " + field + ": "));
  }
}

}  // namespace
}  // namespace baton
