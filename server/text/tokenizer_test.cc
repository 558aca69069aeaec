#include "server/text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/text/detokenizer.h"
#include "server/text/model_folder_for_test.h"

namespace baton {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kNumAddedTokens = 16;  // Ids 0 to 15 of the demo model.

std::unique_ptr<const Tokenizer> LoadDemo() {
  auto tokenizer = Tokenizer::Load(kDemoModelFolder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

nlohmann::json Golden() {
  return nlohmann::json::parse(
      std::ifstream("models/tiny-deepseek-v3/golden/tokenizer.json"));
}

TEST(TokenizerTest, EncodesTheGoldenTextsExactly) {
  const auto tokenizer = LoadDemo();
  const nlohmann::json cases = Golden()["cases"];
  EXPECT_EQ(cases.size(), 87);
  for (const nlohmann::json& one : cases) {
    const std::string text = one["text"];
    const auto ids = tokenizer->Encode(text, /*parse_special=*/true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, one["ids"].get<std::vector<uint32_t>>()) << text;
    EXPECT_EQ(Decode(*tokenizer, *ids, /*skip_special_tokens=*/false),
              one["decoded"].get<std::string>());
  }
}

TEST(TokenizerTest, TextNeverBecomesAnAddedTokenUnlessAsked) {
  const auto tokenizer = LoadDemo();
  for (uint32_t id = 0; id < kNumAddedTokens; ++id) {
    const std::string content(tokenizer->TokenBytes(id));
    const std::string text = "a " + content + content + " b";
    const auto parsed = tokenizer->Encode(text, /*parse_special=*/true);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(std::count(parsed->begin(), parsed->end(), id), 2) << text;
    const auto plain = tokenizer->Encode(text, /*parse_special=*/false);
    ASSERT_TRUE(plain.ok());
    EXPECT_THAT(*plain, Each(testing::Ge(kNumAddedTokens))) << text;
    EXPECT_EQ(Decode(*tokenizer, *plain, false), text);
  }
}

TEST(TokenizerTest, GoldenTextsWithAddedTokensDifferWithoutParsing) {
  const auto tokenizer = LoadDemo();
  const nlohmann::json cases = Golden()["cases"];
  for (const nlohmann::json& one : cases) {
    const std::string text = one["text"];
    const auto expected = one["ids"].get<std::vector<uint32_t>>();
    const bool has_added =
        std::any_of(expected.begin(), expected.end(),
                    [](uint32_t id) { return id < kNumAddedTokens; });
    const auto ids = tokenizer->Encode(text, /*parse_special=*/false);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids == expected, !has_added) << text;
    EXPECT_EQ(Decode(*tokenizer, *ids, true), text);
  }
}

TEST(TokenizerTest, StatesWhatTheConfigSays) {
  const auto tokenizer = LoadDemo();
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  EXPECT_FALSE(tokenizer->IsSpecial(3));
  EXPECT_EQ(tokenizer->TokenBytes(1520), "Hello");
  EXPECT_EQ(tokenizer->TokenBytes(1178), " world");
  EXPECT_EQ(tokenizer->TokenId("<think>").value(), 5);
  EXPECT_EQ(tokenizer->TokenId("Hello").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TokenizerTest, IdsWithoutATokenHaveNoBytes) {
  const auto tokenizer = LoadDemo();
  EXPECT_EQ(tokenizer->TokenBytes(4096), "");
  EXPECT_EQ(tokenizer->TokenBytes(UINT32_MAX), "");
  EXPECT_FALSE(tokenizer->IsSpecial(UINT32_MAX));
}

TEST(TokenizerTest, ReadsInvalidUtf8AsReplacementCharacters) {
  const auto tokenizer = LoadDemo();
  const auto ids = tokenizer->Encode("a\xFF\xE2\x82z", true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, *tokenizer->Encode("a\xEF\xBF\xBD\xEF\xBF\xBDz", true));
}

TEST(TokenizerTest, FindsAddedTokensLeftmostThenLongest) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json", [](nlohmann::json& json) {
    for (const auto& [id, content, normalized] :
         {std::tuple(4096, "<a", false), std::tuple(4097, "<ab>", false),
          std::tuple(4098, "b>c", false), std::tuple(4099, "x<", true)}) {
      json["added_tokens"].push_back({{"id", id},
                                      {"content", content},
                                      {"special", false},
                                      {"normalized", normalized}});
    }
  });
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 4100);
  EXPECT_THAT(*(*tokenizer)->Encode("<ab><ab<a", true),
              ElementsAre(4097, 4096, 81, 4096));
  // Those that are normalized only see what the others leave.
  EXPECT_THAT(*(*tokenizer)->Encode("x<x<a", true),
              ElementsAre(4099, 103, 4096));
}

TEST(TokenizerTest, MergesThatMakeAnAddedTokenDoNotCount) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json", [](nlohmann::json& json) {
    json["added_tokens"].push_back({{"id", 1520}, {"content", "Hello"}});
  });
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("Hello", true), ElementsAre(1520));
  const auto plain = *(*tokenizer)->Encode("Hello", false);
  EXPECT_THAT(plain, testing::Not(testing::Contains(1520)));
  EXPECT_EQ(Decode(**tokenizer, plain, false), "Hello");
}

TEST(TokenizerTest, MergesMayBeStrings) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json", [](nlohmann::json& json) {
    for (nlohmann::json& merge : json["model"]["merges"]) {
      merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
  });
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("Hello world", true),
              ElementsAre(1520, 1178));
}

TEST(TokenizerTest, WholePiecesNeedNoMergesWhenTheFileSaysSo) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json", [](nlohmann::json& json) {
    json["model"]["merges"] = nlohmann::json::array();
  });
  auto tokenizer = Tokenizer::Load(folder.path());
  EXPECT_EQ((*tokenizer)->Encode("Hello world", true)->size(), 11);
  folder.Edit("tokenizer.json", [](nlohmann::json& json) {
    json["model"]["ignore_merges"] = true;
  });
  tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("Hello world", true),
              ElementsAre(1520, 1178));
}

TEST(TokenizerTest, UsesGpt2sPatternWhereByteLevelSplits) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json", [](nlohmann::json& json) {
    json["pre_tokenizer"] = {{"type", "ByteLevel"},
                             {"add_prefix_space", false}};
  });
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("Hello world", true),
              ElementsAre(1520, 1178));
}

// A step that is quadratic in any of these would take minutes.
TEST(TokenizerTest, LongTextsOfAnyShapeComeBack) {
  const auto tokenizer = LoadDemo();
  for (const std::string unit :
       {"a", " ", "\n", " \n", "1", "!", "\x01", "\u0301", "\u4e16",
        "\U0001F468\u200D\U0001F469\u200D\U0001F467", "<\uff5cUser",
        "<\uff5cUser\uff5c>", "ab1! \n"}) {
    std::string text;
    while (text.size() < 1 << 17) text.append(unit);
    text.append("x");
    for (const bool parse_special : {false, true}) {
      const auto ids = tokenizer->Encode(text, parse_special);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(Decode(*tokenizer, *ids, false) == text, true) << unit;
    }
  }
}

TEST(TokenizerTest, ServesManyThreadsAtOnce) {
  const auto tokenizer = LoadDemo();
  const std::string text =
      "Once upon a time, 12345 foxes \xF0\x9F\xA6\x8A ran.";
  const std::vector<uint32_t> expected = *tokenizer->Encode(text, false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        EXPECT_EQ(*tokenizer->Encode(text, false), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// --- bad files
// ----------------------------------------------------------------

struct BadField {
  std::string file;
  std::string field;  // What the error has to name.
  std::function<void(nlohmann::json&)> spoil;
};

// What a single field of tokenizer.json may hold is tested with TokenizerFile.
std::vector<BadField> BadFields() {
  using J = nlohmann::json;
  const std::string t = "tokenizer.json";
  const std::string c = "tokenizer_config.json";
  return {
      {t, "pre_tokenizer.pretokenizers[0].pattern",
       [](J& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(";
       }},
      {t, "model.vocab.", [](J& j) { j["model"]["vocab"]["he"] = 1520; }},
      // The character of byte 0xA1; the merges do not use it.
      {t, "model.vocab", [](J& j) { j["model"]["vocab"].erase("\u00A1"); }},
      {t, "model.vocab",
       [](J& j) {
         j["added_tokens"].push_back({{"id", 80}, {"content", "a"}});
       }},
      {t, "added_tokens[2].id",
       [](J& j) {
         j["added_tokens"][2] = {{"id", 77}, {"content", "<new>"}};
       }},
      {t, "added_tokens[16].id",
       [](J& j) { j["added_tokens"].push_back(j["added_tokens"][2]); }},
      {c, "bos_token", [](J& j) { j["bos_token"] = "<none>"; }},
      {c, "bos_token", [](J& j) { j["bos_token"] = 3; }},
      {c, "bos_token.content", [](J& j) { j["bos_token"].erase("content"); }},
      {c, "add_bos_token", [](J& j) { j["add_bos_token"] = "yes"; }},
      {c, "add_bos_token", [](J& j) { j.erase("bos_token"); }},
      {c, "top level", [](J& j) { j = 3; }},
  };
}

TEST(TokenizerTest, BadFieldsAreNamedWithTheirFile) {
  for (const BadField& bad : BadFields()) {
    ModelFolderForTest folder;
    folder.Edit(bad.file, bad.spoil);
    const auto tokenizer = Tokenizer::Load(folder.path());
    ASSERT_FALSE(tokenizer.ok()) << bad.field;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()),
                HasSubstr("/" + bad.file + ": "))
        << bad.field;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(bad.field))
        << tokenizer.status();
  }
}

TEST(TokenizerTest, MissingFilesAreNamed) {
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"}) {
    ModelFolderForTest folder;
    folder.Remove(name);
    const auto tokenizer = Tokenizer::Load(folder.path());
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(name));
  }
}

TEST(TokenizerTest, TruncatedConfigsAreErrors) {
  ModelFolderForTest folder;
  const std::string whole = folder.Read("tokenizer_config.json");
  for (size_t size = 0; size < whole.size(); size += whole.size() / 20) {
    folder.Write("tokenizer_config.json",
                 std::string_view(whole).substr(0, size));
    const auto tokenizer = Tokenizer::Load(folder.path());
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()),
                HasSubstr("/tokenizer_config.json: "));
  }
}

}  // namespace
}  // namespace baton
