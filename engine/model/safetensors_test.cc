#include "engine/model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace baton {
namespace {

namespace fs = std::filesystem;

std::string FileBytes(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  return bytes + header + data;
}

absl::StatusOr<std::vector<Tensor>> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "x.safetensors");
}

std::string Error(const std::string& header, const std::string& data) {
  return std::string(Parse(FileBytes(header, data)).status().message());
}

const char kGoodHeader[] =
    R"({"__metadata__":{"format":"pt"},)"
    R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
    R"("none":{"dtype":"I64","shape":[3,0],"data_offsets":[12,12]}})";
const char kGoodData[] = "aabbccccdddd";

// A fresh folder for one test.
std::string Folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const fs::path folder = fs::path(testing::TempDir()) / test->name();
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string OneTensor(const std::string& name) {
  return FileBytes(
      "{\"" + name + R"(":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
      "xyz");
}

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheFile) {
  const std::string bytes = FileBytes(kGoodHeader, kGoodData);
  const auto tensors = Parse(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, TensorDtype::kBf16);
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(std::memcmp((*tensors)[1].bytes.data(), "ccccdddd", 8), 0);
  EXPECT_TRUE((*tensors)[2].bytes.empty());
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string bytes = FileBytes(kGoodHeader, kGoodData);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(Parse(bytes.substr(0, size)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << size;
  }
}

TEST(SafetensorsTest, RefusesEveryTruncatedFileOfAFolder) {
  const std::string folder = Folder();
  const std::string bytes = FileBytes(kGoodHeader, kGoodData);
  for (size_t size = 0; size < bytes.size(); ++size) {
    Write(folder + "/model.safetensors", bytes.substr(0, size));
    EXPECT_FALSE(ModelTensors::Open(folder).ok()) << size;
  }
  Write(folder + "/model.safetensors", bytes);
  EXPECT_TRUE(ModelTensors::Open(folder).ok());
}

TEST(SafetensorsTest, SurvivesEveryByteOfTheHeaderChanged) {
  const std::string bytes = FileBytes(kGoodHeader, kGoodData);
  int accepted = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const char change : {'\x01', '\x10', '\x80'}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ change);
      accepted += Parse(changed).ok() ? 1 : 0;
    }
  }
  // Changes of the data and of letters in names are no errors.
  EXPECT_GE(accepted, 3 * 12);
}

TEST(SafetensorsTest, RefusesAHeaderLongerThanTheFile) {
  for (const uint64_t size :
       {uint64_t{3}, uint64_t{100'000'001}, uint64_t{1} << 63, UINT64_MAX}) {
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
    EXPECT_EQ(Parse(bytes + "{}").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(SafetensorsTest, NamesTheTensorAndItsFault) {
  struct Case {
    const char* entry;
    const char* problem;
  };
  const Case kCases[] = {
      {R"([])", "not an object"},
      {R"({})", "dtype is not a string"},
      {R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})",
       "dtype 'F31' is not known"},
      {R"({"dtype":"F32","data_offsets":[0,4]})", "shape is not a list"},
      {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "shape has"},
      {R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", "shape has"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})",
       "shape is not a list of at most 8 sizes"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})",
       "shape has"},
      {R"({"dtype":"F32","shape":[1]})", "data_offsets are not two"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0]})",
       "data_offsets are not two"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})",
       "data_offsets are not two"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,5]})", "do not lie in"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "do not lie in"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})",
       "which is not the size of F32 [2]"},
      // 2^32 * 2^32 * 4 bytes is 0 modulo 2^64.
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})",
       "which is not the size of"},
      {R"({"dtype":"F32","shape":[9223372036854775807,2],"data_offsets":[0,4]})",
       "which is not the size of"},
  };
  for (const Case& c : kCases) {
    const std::string error =
        Error(std::string("{\"w\":") + c.entry + "}", "1234");
    EXPECT_EQ(error.find("x.safetensors: tensor w: "), 0) << error;
    EXPECT_NE(error.find(c.problem), std::string::npos) << error;
  }
}

TEST(SafetensorsTest, RefusesHolesOverlapAndALeftover) {
  const std::string a =
      R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_NE(
      Error(
          "{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
          "1234")
          .find("tensor b: a hole lies before it"),
      std::string::npos);
  EXPECT_NE(
      Error(
          "{" + a + R"(,"b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
          "1234")
          .find("tensor b: overlaps"),
      std::string::npos);
  EXPECT_NE(Error("{" + a + "}", "1234").find("2 bytes behind the last"),
            std::string::npos);
}

TEST(SafetensorsTest, RefusesARepeatedNameAndOddMetadata) {
  const std::string a =
      R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_NE(Error("{" + a + "," + a + "}", "").find("key 'a' is repeated"),
            std::string::npos);
  EXPECT_NE(Error(R"({"__metadata__":{"a":1}})", "").find("__metadata__"),
            std::string::npos);
  EXPECT_NE(Error("[]", "").find("header is not an object"), std::string::npos);
}

TEST(SafetensorsTest, FindsTensorsInShards) {
  const std::string folder = Folder();
  Write(folder + "/1.safetensors", OneTensor("b"));
  Write(folder + "/2.safetensors", OneTensor("a"));
  Write(folder + "/model.safetensors.index.json",
        R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  const auto tensors = ModelTensors::Open(folder);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->tensors().size(), 2);
  EXPECT_EQ(tensors->tensors()[0].name, "a");
  ASSERT_NE(tensors->Find("b"), nullptr);
  EXPECT_EQ(tensors->Find("b")->file, folder + "/1.safetensors");
  EXPECT_EQ(tensors->Find("c"), nullptr);
}

TEST(SafetensorsTest, RefusesAMissingShardAndAMissingTensor) {
  const std::string folder = Folder();
  EXPECT_EQ(ModelTensors::Open(folder).status().code(),
            absl::StatusCode::kNotFound);
  const std::string index = folder + "/model.safetensors.index.json";
  Write(index, R"({"weight_map":{"a":"1.safetensors"}})");
  EXPECT_EQ(ModelTensors::Open(folder).status().code(),
            absl::StatusCode::kNotFound);
  Write(folder + "/1.safetensors", OneTensor("b"));
  const absl::Status status = ModelTensors::Open(folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("1.safetensors: tensor a is missing"),
            std::string::npos);
}

TEST(SafetensorsTest, RefusesAnOddIndex) {
  const std::string folder = Folder();
  for (const char* index :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})"}) {
    Write(folder + "/model.safetensors.index.json", index);
    EXPECT_EQ(ModelTensors::Open(folder).status().code(),
              absl::StatusCode::kInvalidArgument)
        << index;
  }
}

TEST(SafetensorsTest, RefusesAShardOutsideTheFolder) {
  const std::string parent = Folder();
  const std::string folder = parent + "/model";
  fs::create_directories(folder + "/below");
  Write(parent + "/outside", OneTensor("a"));
  Write(folder + "/below/inside", OneTensor("a"));
  Write(folder + "/inside", OneTensor("a"));
  fs::create_symlink("../outside", folder + "/link_out");
  fs::create_symlink("inside", folder + "/link_in");
  const auto open = [&](const std::string& shard) {
    Write(folder + "/model.safetensors.index.json",
          R"({"weight_map":{"a":")" + shard + R"("}})");
    return ModelTensors::Open(folder).status();
  };
  for (const std::string& shard :
       {std::string("../outside"), parent + "/outside",
        std::string("below/inside"), std::string(""), std::string("."),
        std::string(".."), std::string("link_out")}) {
    EXPECT_EQ(open(shard).code(), absl::StatusCode::kInvalidArgument) << shard;
  }
  EXPECT_TRUE(open("link_in").ok());
}

TEST(SafetensorsTest, ReadsAFolderOfLinksIntoOneOther) {
  const std::string parent = Folder();
  fs::create_directories(parent + "/blobs");
  fs::create_directories(parent + "/model");
  Write(parent + "/blobs/1", OneTensor("a"));
  Write(parent + "/blobs/2", R"({"weight_map":{"a":"a.safetensors"}})");
  const std::string index = parent + "/model/model.safetensors.index.json";
  fs::create_symlink("../blobs/1", parent + "/model/a.safetensors");
  fs::create_symlink("../blobs/2", index);
  EXPECT_TRUE(ModelTensors::Open(parent + "/model").ok());
  fs::remove(index);
  fs::copy_file(parent + "/blobs/2", index);
  EXPECT_FALSE(ModelTensors::Open(parent + "/model").ok());
}

TEST(SafetensorsTest, RefusesAFolderInPlaceOfAFile) {
  const std::string folder = Folder();
  fs::create_directories(folder + "/model.safetensors");
  EXPECT_EQ(ModelTensors::Open(folder).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
