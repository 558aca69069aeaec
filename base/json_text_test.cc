#include "base/json_text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

namespace baton {
namespace {

std::string Nested(int levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST(JsonTextTest, ReadsOneValue) {
  const auto value = ParseJson(R"({"a": [1, 2.5, "x"], "b": null})", "file");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"][2], "x");
}

TEST(JsonTextTest, NamesTheTextThatIsNotJson) {
  for (const std::string text : {"", "{", "[1,]", "{\"a\":}", "nul", "nan",
                                 "\"\xFF\"", "1e999", "{} {}", "\"\\ud800\""}) {
    const absl::Status status = ParseJson(text, "the text").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(std::string(status.message()).find("the text: "), 0u) << status;
    EXPECT_FALSE(ParseOrderedJson(text, "the text").ok()) << text;
  }
}

TEST(JsonTextTest, RefusesDeepNestingBeforeParsingIt) {
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth), "file").ok());
  for (const std::string& text :
       {Nested(kMaxJsonDepth + 1), std::string(1'000'000, '[')}) {
    EXPECT_FALSE(ParseJson(text, "file").ok());
    EXPECT_FALSE(ParseOrderedJson(text, "file").ok());
  }
}

TEST(JsonTextTest, BracketsInStringsAreNoNesting) {
  const std::string brackets(100, '{');
  EXPECT_TRUE(ParseJson("[\"\\\"" + brackets + "\"]", "file").ok());
}

TEST(JsonTextTest, OrderedJsonKeepsTheOrderOfKeys) {
  const auto json = ParseOrderedJson(R"({"b": 1, "a": 2})", "file");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->begin().key(), "b");
}

TEST(JsonTextTest, RefusesARepeatedKeyOfOneObject) {
  EXPECT_TRUE(ParseJson(R"({"a": {"b": 1}, "b": {"b": 2}})", "file").ok());
  const auto value = ParseJson(R"({"x": [{"b": 1, "b": 1}]})", "file");
  EXPECT_EQ(value.status().message(), "file: key 'b' is repeated");
}

TEST(JsonTextTest, ReadsFilesUpToTheLimit) {
  const std::string path = testing::TempDir() + "/ten_bytes";
  std::ofstream(path) << "0123456789";
  EXPECT_EQ(ReadTextFile(path, 10).value(), "0123456789");
  EXPECT_EQ(ReadTextFile(path, 9).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JsonTextTest, AMissingFileIsNotFoundByName) {
  const absl::Status status = ReadTextFile("/nowhere/a.json", 10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "/nowhere/a.json: No such file or directory");
}

TEST(JsonTextTest, RefusesWhatIsNoFileAtOnce) {
  const std::string pipe = testing::TempDir() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {testing::TempDir(), pipe}) {
    const absl::Status status = ReadTextFile(path, 1 << 20).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), path + ": not a regular file");
  }
}

}  // namespace
}  // namespace baton
