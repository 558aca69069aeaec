#include "engine/model/json_text.h"

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

TEST(JsonTextTest, NamesTheFileOfTextThatIsNotJson) {
  for (const char* text : {"", "{", "{} x", "{\"a\": }", "nan", "\"\xff\""}) {
    const auto value = ParseJson(text, "folder/config.json");
    EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(value.status().message().find("folder/config.json"),
              std::string::npos);
  }
}

TEST(JsonTextTest, RefusesDeepNestingBeforeParsingIt) {
  EXPECT_TRUE(ParseJson(Nested(32), "file").ok());
  EXPECT_FALSE(ParseJson(Nested(33), "file").ok());
  EXPECT_FALSE(ParseJson(std::string(10'000'000, '['), "file").ok());
}

TEST(JsonTextTest, BracketsInStringsAreNoNesting) {
  const std::string brackets(100, '{');
  EXPECT_TRUE(ParseJson("[\"\\\"" + brackets + "\"]", "file").ok());
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

TEST(JsonTextTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(ReadTextFile(testing::TempDir() + "/absent", 10).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTextFile(testing::TempDir(), 1 << 20).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string pipe = testing::TempDir() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(ReadTextFile(pipe, 10).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
