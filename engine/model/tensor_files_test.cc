#include "engine/model/tensor_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/testing/safetensors_writer.h"

namespace baton {
namespace {

TensorToWrite Floats(const std::string& name, int64_t count, float value) {
  return F32Tensor(name, {count}, std::vector<float>(count, value));
}

// A folder with "a.w" and "b.u", "b.w" in one file.
class TensorFilesTest : public testing::Test {
 protected:
  TensorFilesTest() { Write(1); }

  void Write(float value) const {
    WriteSafetensors(file_, {Floats("b.w", 3, value), Floats("a.w", 2, value),
                             Floats("b.u", 1000, 2 * value)});
  }
  ModelTensors Map() const {
    auto mapped = ModelTensors::Open(folder_);
    EXPECT_TRUE(mapped.ok()) << mapped.status();
    return *std::move(mapped);
  }
  std::unique_ptr<const TensorFiles> Open() const {
    auto files = TensorFiles::Open(Map());
    EXPECT_TRUE(files.ok()) << files.status();
    return *std::move(files);
  }
  // The only file's name is told.
  void ExpectLost(const absl::Status& status) const {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message().find(file_), 0u) << status;
  }

  const std::string folder_ = FreshTestFolder();
  const std::string file_ = folder_ + "/model.safetensors";
};

std::vector<float> ValuesOf(const Tensor* tensor) {
  std::vector<float> values(tensor->bytes.size() / sizeof(float));
  std::copy(tensor->bytes.begin(), tensor->bytes.end(),
            reinterpret_cast<std::byte*>(values.data()));
  return values;
}

TEST_F(TensorFilesTest, ReadsTheTensorsWhoseNamesBeginSo) {
  const auto read = Open()->Read("b.");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tensors().size(), 2u);
  EXPECT_EQ(read->Find("a.w"), nullptr);
  ASSERT_NE(read->Find("b.w"), nullptr);
  EXPECT_EQ(ValuesOf(read->Find("b.w")), std::vector<float>(3, 1));
  EXPECT_EQ(ValuesOf(read->Find("b.u")), std::vector<float>(1000, 2));
  EXPECT_EQ(read->Find("b.w")->file, file_);
  EXPECT_EQ(read->Find("b.w")->shape, std::vector<int64_t>{3});
}

TEST_F(TensorFilesTest, ReadsEachShardsTensors) {
  std::filesystem::remove(file_);
  WriteSafetensors(folder_ + "/one.safetensors",
                   {Floats("a", 2, 1), Floats("c", 5, 3)});
  WriteSafetensors(folder_ + "/two.safetensors", {Floats("b", 3, 2)});
  WriteTextFile(folder_ + "/model.safetensors.index.json",
                R"({"weight_map": {"a": "one.safetensors",
                    "b": "two.safetensors", "c": "one.safetensors"}})");
  const auto read = Open()->Read("");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->tensors().size(), 3u);
  EXPECT_EQ(ValuesOf(read->Find("a")), std::vector<float>(2, 1));
  EXPECT_EQ(ValuesOf(read->Find("b")), std::vector<float>(3, 2));
  EXPECT_EQ(ValuesOf(read->Find("c")), std::vector<float>(5, 3));
}

TEST_F(TensorFilesTest, NoSuchTensorsAreNoError) {
  const auto read = Open()->Read("c.");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->tensors().empty());
}

TEST_F(TensorFilesTest, AFileThatIsRemovedOrReplacedIsReadAsItWas) {
  const auto files = Open();
  const auto expect_as_before = [&] {
    const auto read = files->Read("b.w");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(ValuesOf(read->Find("b.w")), std::vector<float>(3, 1));
  };
  std::filesystem::remove(file_);
  expect_as_before();
  Write(5);
  expect_as_before();
}

TEST_F(TensorFilesTest, ATruncatedFileIsNamed) {
  const auto files = Open();
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1);
  ExpectLost(files->Read("b.u").status());
  // Whole, but of a file that is not what it was.
  ExpectLost(files->Read("a.w").status());
  std::filesystem::resize_file(file_, 0);
  ExpectLost(files->Read("a.w").status());
}

TEST_F(TensorFilesTest, AFileThatIsWrittenToIsNamed) {
  const auto files = Open();
  const auto modified = std::filesystem::last_write_time(file_);
  std::filesystem::last_write_time(file_, modified + std::chrono::seconds(1));
  ExpectLost(files->Read("b.w").status());
}

TEST_F(TensorFilesTest, AFileThatChangesBetweenTheMapAndTheOpenIsNamed) {
  const ModelTensors mapped = Map();
  std::filesystem::remove(file_);
  const absl::Status missing = TensorFiles::Open(mapped).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message().find(file_), 0u) << missing;
  Write(1);
  ExpectLost(TensorFiles::Open(mapped).status());
}

}  // namespace
}  // namespace baton
