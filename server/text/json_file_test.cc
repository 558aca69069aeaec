#include "server/text/json_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

std::string WriteFile(std::string_view contents) {
  const std::string path = testing::TempDir() + "file.json";
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

TEST(JsonFileTest, AMissingFileIsNotFoundByName) {
  const absl::Status status = ReadTextFile("/nowhere/a.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "/nowhere/a.json: No such file or directory");
}

TEST(JsonFileTest, AFolderIsNoFile) {
  EXPECT_EQ(ReadTextFile(testing::TempDir()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(JsonFileTest, AFifoIsRefusedAtOnceByName) {
  const std::string path = testing::TempDir() + "fifo.json";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const absl::Status status = ReadTextFile(path).status();
  unlink(path.c_str());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(status), path + ": not a regular file");
}

TEST(JsonFileTest, TheLargestFileIsReadAndOneByteMoreIsNot) {
  std::string contents(kMaxTextFileBytes, ' ');
  EXPECT_EQ(ReadTextFile(WriteFile(contents))->size(), kMaxTextFileBytes);
  contents.push_back(' ');
  EXPECT_EQ(ReadTextFile(WriteFile(contents)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JsonFileTest, BadJsonIsAnErrorWithItsName) {
  for (const std::string text : {"", "{", "[1,]", "{\"a\":}", "nul", "\"\xFF\"",
                                 "1e999", "{} {}", "\"\\ud800\""}) {
    const absl::Status status = ParseJson("the text", text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(Message(status).find("the text: "), 0) << status;
    EXPECT_FALSE(ParseOrderedJson("the text", text).ok()) << text;
  }
}

TEST(JsonFileTest, NestingIsBounded) {
  const auto nested = [](int depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseJson("t", nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJson("t", nested(kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(ParseJson("t", std::string(10'000'000, '[')).ok());
  // Brackets in strings do not nest.
  EXPECT_TRUE(ParseJson("t", "\"\\\"" + nested(1000) + "\"").ok());
}

TEST(JsonFileTest, OrderedJsonKeepsTheOrderOfKeys) {
  const auto json = ParseOrderedJson("t", R"({"b": 1, "a": 2})");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->begin().key(), "b");
}

TEST(JsonFileTest, FieldsOfTheWrongKindAreNamed) {
  const Json json = Json::parse(
      R"({"s": "x", "n": -1, "big": 4294967296, "half": 0.5, "null": null})");
  const auto object = JsonObject::Create("f.json", "model", json);
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(Message(object->Bool("s").status()),
            "f.json: model.s: is neither true nor false");
  EXPECT_EQ(Message(object->String("n").status()),
            "f.json: model.n: is not a string");
  EXPECT_EQ(Message(object->Number("s").status()),
            "f.json: model.s: is not a number");
  for (const char* key : {"n", "big", "half", "s"}) {
    EXPECT_EQ(Message(object->Unsigned(key, UINT32_MAX).status()),
              std::string("f.json: model.") + key +
                  ": is not a whole number from 0 to 4294967295");
  }
  EXPECT_EQ(Message(object->RequiredString("null").status()),
            "f.json: model.null: is missing");
  EXPECT_EQ(Message(object->RequiredUnsigned("none", 1).status()),
            "f.json: model.none: is missing");
  EXPECT_EQ(Message(object->RequiredArray("s").status()),
            "f.json: model.s: is not an array");
  EXPECT_EQ(Message(object->RequiredObject("s").status()),
            "f.json: model.s: is not an object");
}

TEST(JsonFileTest, AbsentAndNullFieldsReadAsNothing) {
  const Json json = Json::parse(R"({"null": null})");
  const auto object = JsonObject::Create("f.json", "", json);
  for (const char* key : {"null", "none"}) {
    EXPECT_EQ(object->Bool(key).value(), std::nullopt);
    EXPECT_EQ(object->String(key).value(), std::nullopt);
    EXPECT_EQ(object->Unsigned(key, 1).value(), std::nullopt);
    EXPECT_EQ(object->Number(key).value(), std::nullopt);
    EXPECT_EQ(object->Find(key), nullptr);
  }
}

TEST(JsonFileTest, TheTopLevelHasToBeAnObject) {
  EXPECT_EQ(JsonFile::Read(WriteFile("[]")).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto file = JsonFile::Read(WriteFile(R"({"a": true})"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->root().Bool("a").value(), true);
}

}  // namespace
}  // namespace baton
