#include "server/text/text_hash.h"

#include <set>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/text/model_folder_for_test.h"

namespace baton {
namespace {

TEST(TextHashTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(TextHash(kDemoModelFolder).value(),
            "1357aec1b9fb87bb00957d81038bd805");
  const ModelFolderForTest copy;
  EXPECT_EQ(TextHash(copy.path()).value(), "1357aec1b9fb87bb00957d81038bd805");
}

TEST(TextHashTest, EveryPartCounts) {
  std::set<std::string> hashes = {TextHash(kDemoModelFolder).value()};
  for (const std::string name :
       {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    ModelFolderForTest folder;
    folder.Write(name, folder.Read(name) + " ");
    hashes.insert(TextHash(folder.path()).value());
  }
  ModelFolderForTest folder;
  folder.Edit("config.json",
              [](nlohmann::json& json) { json["vocab_size"] = 4097; });
  hashes.insert(TextHash(folder.path()).value());
  folder.Remove("generation_config.json");
  hashes.insert(TextHash(folder.path()).value());
  EXPECT_EQ(hashes.size(), 6);
}

TEST(TextHashTest, OfTheModelsConfigOnlyTheVocabularySizeCounts) {
  ModelFolderForTest folder;
  folder.Edit("config.json",
              [](nlohmann::json& json) { json["hidden_size"] = 1; });
  EXPECT_EQ(TextHash(folder.path()).value(),
            TextHash(kDemoModelFolder).value());
}

TEST(TextHashTest, MissingFilesAreErrors) {
  for (const std::string name :
       {"tokenizer.json", "tokenizer_config.json", "config.json"}) {
    ModelFolderForTest folder;
    folder.Remove(name);
    EXPECT_EQ(TextHash(folder.path()).status().code(),
              absl::StatusCode::kNotFound);
  }
}

}  // namespace
}  // namespace baton
