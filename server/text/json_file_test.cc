#include "server/text/json_file.h"

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
  std::string path = testing::TempDir() + "file.json";
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

TEST(JsonFileTest, TheLargestFileIsReadAndOneByteMoreIsNot) {
  std::string contents(kMaxTextFileBytes, ' ');
  contents.replace(0, 2, "{}");
  EXPECT_TRUE(JsonFile::Read(WriteFile(contents)).ok());
  contents.push_back(' ');
  EXPECT_EQ(JsonFile::Read(WriteFile(contents)).status().code(),
            absl::StatusCode::kInvalidArgument);
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
