#include "engine/model/fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/model/testing/safetensors_writer.h"

namespace baton {
namespace {

std::string HashOf(std::string_view text) {
  Hash128 hash;
  hash.Add(text);
  return hash.Hex();
}

// Computed with Python's integers from the definition.
TEST(FingerprintTest, HashIsFnv1aOverWords) {
  EXPECT_EQ(Hash128().Hex(), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(HashOf(""), "d228cb69101a8caf78912b704e4a147f");
  EXPECT_EQ(HashOf("abcdefghi"), "5ba344f3f68abb4579bb1062cf952092");
}

TEST(FingerprintTest, PiecesDoNotRunIntoEachOther) {
  Hash128 ab;
  ab.Add("a");
  ab.Add("b");
  std::set<std::string> hashes = {ab.Hex(), HashOf("ab"), HashOf("a"),
                                  HashOf(std::string("a\0", 2))};
  EXPECT_EQ(hashes.size(), 4);
}

std::string FingerprintOf(const std::vector<TensorToWrite>& written,
                          const std::string& config = "{}",
                          CacheKind cache = {CacheDtype::kF32}) {
  const std::string folder = FreshTestFolder();
  WriteSafetensors(folder + "/model.safetensors", written);
  const auto tensors = ModelTensors::Open(folder);
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  return ModelFingerprint(config, *tensors, cache);
}

TEST(FingerprintTest, EverythingThatItNamesCounts) {
  const std::vector<float> values(2048, 1.5f);
  std::vector<float> changed = values;
  changed[1023] = 2;
  const auto make = [&](const char* name, std::vector<int64_t> shape,
                        const std::vector<float>& v) {
    return std::vector<TensorToWrite>{F32Tensor(name, std::move(shape), v)};
  };
  std::vector<TensorToWrite> integers = make("w", {2048}, values);
  integers[0].dtype = TensorDtype::kI32;
  const std::set<std::string> fingerprints = {
      FingerprintOf(make("w", {2048}, values)),
      FingerprintOf(make("w", {2048}, values), "{ }"),
      FingerprintOf(make("w", {2048}, values), "{}", {CacheDtype::kBf16}),
      FingerprintOf(make("w", {2048}, values), "{}", {CacheDtype::kF32, true}),
      FingerprintOf(make("v", {2048}, values)),
      FingerprintOf(make("w", {2, 1024}, values)),
      FingerprintOf(make("w", {2048}, changed)),
      FingerprintOf(integers),
      FingerprintOf({}),
  };
  EXPECT_EQ(fingerprints.size(), 9);
}

TEST(FingerprintTest, ContentBeyondTheFirst4KiBDoesNotCount) {
  std::vector<float> values(2048, 1.5f);
  const std::string base = FingerprintOf({F32Tensor("w", {2048}, values)});
  values[1024] = 2;
  EXPECT_EQ(FingerprintOf({F32Tensor("w", {2048}, values)}), base);
}

}  // namespace
}  // namespace baton
