#include "server/text/tokenizer_file.h"

#include <functional>
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
using ::testing::SizeIs;
using J = nlohmann::json;

absl::StatusOr<TokenizerFile> ReadEdited(const std::function<void(J&)>& edit) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json", edit);
  return ReadTokenizerFile(folder.path() + "/tokenizer.json");
}

TEST(TokenizerFileTest, ReadsTheDemoModels) {
  const auto file = ReadEdited([](J&) {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->vocab, SizeIs(4096));
  EXPECT_THAT(file->merges, SizeIs(3824));
  EXPECT_THAT(file->added_tokens, SizeIs(16));
  EXPECT_THAT(file->patterns, SizeIs(3));
  EXPECT_EQ(file->patterns[0], "\\p{N}{1,3}");
  EXPECT_EQ(file->pattern_fields[2], "pre_tokenizer.pretokenizers[2].pattern");
  EXPECT_FALSE(file->ignore_merges);
}

TEST(TokenizerFileTest, DigitsAndByteLevelAreSplitsToo) {
  const auto file = ReadEdited([](J& j) {
    j["pre_tokenizer"]["pretokenizers"] = {
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "Digits"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}}};
  });
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->patterns,
              ElementsAre("\\p{N}", "\\p{N}+", HasSubstr("'s|'t|'re")));
}

TEST(TokenizerFileTest, AnEmptyNormalizerIsNone) {
  const auto file = ReadEdited([](J& j) {
    j["normalizer"] = {{"type", "Sequence"}, {"normalizers", J::array()}};
  });
  EXPECT_TRUE(file.ok()) << file.status();
}

TEST(TokenizerFileTest, AddedTokensMayBeAbsentAndTheirFlagsToo) {
  EXPECT_THAT(ReadEdited([](J& j) { j.erase("added_tokens"); })->added_tokens,
              SizeIs(0));
  const auto file = ReadEdited([](J& j) {
    j["added_tokens"] = {{{"id", 1}, {"content", "<a>"}},
                         {{"id", 2}, {"content", "<b>"}, {"special", true}}};
  });
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->added_tokens[0].special);
  EXPECT_TRUE(file->added_tokens[0].normalized);
  EXPECT_TRUE(file->added_tokens[1].special);
  EXPECT_FALSE(file->added_tokens[1].normalized);
}

struct BadField {
  std::string field;  // What the error has to name.
  std::function<void(J&)> spoil;
};

std::vector<BadField> BadPreTokenizers() {
  const auto steps = [](J& j) -> J& {
    return j["pre_tokenizer"]["pretokenizers"];
  };
  const std::string name = "pre_tokenizer.pretokenizers";
  return {
      {"pre_tokenizer", [](J& j) { j.erase("pre_tokenizer"); }},
      {"pre_tokenizer", [](J& j) { j["pre_tokenizer"] = 3; }},
      {"pre_tokenizer.type",
       [](J& j) { j["pre_tokenizer"]["type"] = "Whitespace"; }},
      {"pre_tokenizer.type", [](J& j) { j["pre_tokenizer"]["type"] = 1; }},
      {name, [](J& j) { j["pre_tokenizer"].erase("pretokenizers"); }},
      {"pre_tokenizer", [=](J& j) { steps(j).erase(3); }},
      {name + "[4].type", [=](J& j) { steps(j).push_back(steps(j)[0]); }},
      {name + "[1]", [=](J& j) { steps(j)[1] = "Split"; }},
      {name + "[1].behavior", [=](J& j) { steps(j)[1].erase("behavior"); }},
      {name + "[1].behavior",
       [=](J& j) { steps(j)[1]["behavior"] = "Removed"; }},
      {name + "[1].invert", [=](J& j) { steps(j)[1]["invert"] = 0; }},
      {name + "[0].pattern", [=](J& j) { steps(j)[0].erase("pattern"); }},
      {name + "[0].pattern.Regex",
       [=](J& j) {
         steps(j)[0]["pattern"] = {{"String", "a"}};
       }},
      {name + "[3].add_prefix_space",
       [=](J& j) { steps(j)[3]["add_prefix_space"] = true; }},
      {name + "[3].use_regex", [=](J& j) { steps(j)[3]["use_regex"] = "no"; }},
  };
}

std::vector<BadField> BadModels() {
  const auto model = [](J& j) -> J& { return j["model"]; };
  return {
      {"normalizer",
       [](J& j) {
         j["normalizer"] = {{"type", "NFC"}};
       }},
      {"decoder", [](J& j) { j.erase("decoder"); }},
      {"decoder.type", [](J& j) { j["decoder"]["type"] = "Metaspace"; }},
      {"model", [](J& j) { j.erase("model"); }},
      {"model.type", [=](J& j) { model(j)["type"] = "Unigram"; }},
      {"model.dropout", [=](J& j) { model(j)["dropout"] = 0.1; }},
      {"model.continuing_subword_prefix",
       [=](J& j) { model(j)["continuing_subword_prefix"] = "##"; }},
      {"model.end_of_word_suffix",
       [=](J& j) { model(j)["end_of_word_suffix"] = "</w>"; }},
      {"model.ignore_merges", [=](J& j) { model(j)["ignore_merges"] = 1; }},
      {"model.vocab", [=](J& j) { model(j)["vocab"] = J::array(); }},
      {"model.vocab.he", [=](J& j) { model(j)["vocab"]["he"] = -1; }},
      {"model.vocab.he", [=](J& j) { model(j)["vocab"]["he"] = "1"; }},
      {"model.vocab.he",
       [=](J& j) { model(j)["vocab"]["he"] = kMaxVocabSize; }},
      {"model.vocab", [=](J& j) { model(j)["vocab"][""] = 5000; }},
      {"model.merges", [=](J& j) { model(j)["merges"] = "a b"; }},
      {"model.merges[7]", [=](J& j) { model(j)["merges"][7] = "a b c"; }},
      {"model.merges[7]", [=](J& j) { model(j)["merges"][7] = "ab"; }},
      {"model.merges[7]", [=](J& j) { model(j)["merges"][7] = {"a"}; }},
      {"model.merges[7]",
       [=](J& j) {
         model(j)["merges"][7] = {"a", 1};
       }},
      // One token, then their union, is not in the vocabulary.
      {"model.merges[7]",
       [=](J& j) {
         model(j)["merges"][7] = {"a", "\u20AC"};
       }},
      {"model.merges[7]",
       [=](J& j) {
         model(j)["merges"][7] = {"Q", "Q"};
       }},
  };
}

std::vector<BadField> BadAddedTokens() {
  const auto token = [](J& j) -> J& { return j["added_tokens"][2]; };
  return {
      {"added_tokens", [](J& j) { j["added_tokens"] = 3; }},
      {"added_tokens[2]", [=](J& j) { token(j) = 3; }},
      {"added_tokens[2].id", [=](J& j) { token(j).erase("id"); }},
      {"added_tokens[2].id", [=](J& j) { token(j)["id"] = kMaxVocabSize; }},
      {"added_tokens[2].id", [=](J& j) { token(j)["id"] = 77; }},
      {"added_tokens[2].content", [=](J& j) { token(j)["content"] = ""; }},
      {"added_tokens[2].content", [=](J& j) { token(j).erase("content"); }},
      {"added_tokens[2].lstrip", [=](J& j) { token(j)["lstrip"] = true; }},
      {"added_tokens[2].rstrip", [=](J& j) { token(j)["rstrip"] = true; }},
      {"added_tokens[2].single_word",
       [=](J& j) { token(j)["single_word"] = true; }},
      {"added_tokens[2].special", [=](J& j) { token(j)["special"] = "no"; }},
      {"added_tokens[2].normalized",
       [=](J& j) { token(j)["normalized"] = "no"; }},
  };
}

TEST(TokenizerFileTest, BadFieldsAreNamedWithTheirFile) {
  for (const auto& table :
       {BadPreTokenizers(), BadModels(), BadAddedTokens()}) {
    for (const BadField& bad : table) {
      const auto file = ReadEdited(bad.spoil);
      ASSERT_FALSE(file.ok()) << bad.field;
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(file.status().message()),
                  HasSubstr("/tokenizer.json: " + bad.field + ": "));
    }
  }
}

TEST(TokenizerFileTest, TruncatedFilesAreErrors) {
  ModelFolderForTest folder;
  const std::string whole = folder.Read("tokenizer.json");
  const size_t end = whole.find_last_of('}');
  for (size_t size = 0; size <= end; size += end / 50) {
    folder.Write("tokenizer.json", std::string_view(whole).substr(0, size));
    const auto file = ReadTokenizerFile(folder.path() + "/tokenizer.json");
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()),
                HasSubstr("/tokenizer.json: "));
  }
}

}  // namespace
}  // namespace baton
