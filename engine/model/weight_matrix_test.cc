#include "engine/model/weight_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/model/fp8.h"
#include "engine/model/testing/safetensors_writer.h"

namespace baton {
namespace {

// One file's tensors; the first one shifts the others to odd addresses.
ModelTensors Open(std::vector<TensorToWrite> tensors) {
  const std::string folder = FreshTestFolder();
  tensors.insert(tensors.begin(),
                 {"odd", TensorDtype::kU8, {1}, {std::byte{1}}});
  WriteSafetensors(folder + "/model.safetensors", tensors);
  auto opened = ModelTensors::Open(folder);
  EXPECT_TRUE(opened.ok()) << opened.status();
  return *std::move(opened);
}

std::vector<float> RowOf(const WeightMatrix& matrix, int row) {
  std::vector<float> values(matrix.cols);
  matrix.CopyRow(row, values.data());
  return values;
}

// The product with unit vectors reads a packed weight back.
std::vector<std::vector<float>> Unpack(const PackedWeight& weight) {
  std::vector<float> identity(weight.in() * weight.in());
  for (int i = 0; i < weight.in(); ++i) identity[i * weight.in() + i] = 1;
  std::vector<float> columns(weight.in() * weight.out());
  Linear(CpuContext(),
         {Dense<const float>(identity.data(), weight.in(), weight.in()),
          &weight, Dense(columns.data(), weight.in(), weight.out())});
  std::vector<std::vector<float>> rows(weight.out());
  for (int o = 0; o < weight.out(); ++o) {
    for (int i = 0; i < weight.in(); ++i) {
      rows[o].push_back(columns[i * weight.out() + o]);
    }
  }
  return rows;
}

TEST(WeightMatrixTest, StacksBf16AndKeepsIt) {
  const ModelTensors tensors = Open(
      {Bf16Tensor("a", {1, 2}, {1, 2}), Bf16Tensor("b", {2, 2}, {3, 4, 5, 6})});
  for (const auto storage : {WeightStorage::kAsStored, WeightStorage::kBf16}) {
    const auto matrix = WeightReader(tensors, storage).Stack({"b", "a"});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(matrix->rows, 3);
    EXPECT_EQ(matrix->bf16.size(), 6);
    EXPECT_EQ(RowOf(*matrix, 1), (std::vector<float>{5, 6}));
    EXPECT_EQ(RowOf(*matrix, 2), (std::vector<float>{1, 2}));
    EXPECT_EQ(matrix->Pack().dtype(), WeightDtype::kBf16);
  }
  const auto widened =
      WeightReader(tensors, WeightStorage::kF32).Stack({"b", "a"});
  ASSERT_TRUE(widened.ok()) << widened.status();
  EXPECT_EQ(widened->Pack().dtype(), WeightDtype::kF32);
  EXPECT_EQ(RowOf(*widened, 2), (std::vector<float>{1, 2}));
}

TEST(WeightMatrixTest, MixedDtypesAreWidened) {
  const ModelTensors tensors = Open({Bf16Tensor("a", {1, 2}, {1, 2}),
                                     F32Tensor("b", {1, 2}, {1.0000001f, 4})});
  const auto matrix =
      WeightReader(tensors, WeightStorage::kAsStored).Stack({"a", "b"});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(RowOf(*matrix, 0), (std::vector<float>{1, 2}));
  EXPECT_EQ(RowOf(*matrix, 1), (std::vector<float>{1.0000001f, 4}));
}

TEST(WeightMatrixTest, Fp8IsDequantised) {
  std::vector<std::byte> codes(130, static_cast<std::byte>(EncodeE4m3(3)));
  const ModelTensors tensors =
      Open({{"w", TensorDtype::kF8E4M3, {1, 130}, codes},
            F32Tensor("w_scale_inv", {1, 2}, {0.5f, 10})});
  const auto matrix =
      WeightReader(tensors, WeightStorage::kAsStored).Stack({"w"});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(RowOf(*matrix, 0)[127], 1.5f);
  EXPECT_EQ(RowOf(*matrix, 0)[128], 30.0f);
}

TEST(WeightMatrixTest, PacksRowsAndTheirTranspose) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const ModelTensors tensors = Open(
      {Bf16Tensor("bf16", {4, 3}, values), F32Tensor("f32", {4, 3}, values)});
  for (const char* name : {"bf16", "f32"}) {
    const auto matrix =
        WeightReader(tensors, WeightStorage::kAsStored).Stack({name});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    using Rows = std::vector<std::vector<float>>;
    EXPECT_EQ(Unpack(matrix->PackRows(1, 2)), (Rows{{4, 5, 6}, {7, 8, 9}}));
    EXPECT_EQ(Unpack(matrix->PackRowsTransposed(1, 2)),
              (Rows{{4, 7}, {5, 8}, {6, 9}}));
  }
}

TEST(WeightMatrixTest, NamesATensorThatIsNotFinite) {
  const float kBad[] = {std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(), std::nanf("")};
  for (const float bad : kBad) {
    std::vector<float> values(100, 1);
    values[57] = bad;
    const ModelTensors tensors =
        Open({Bf16Tensor("bf16", {10, 10}, values),
              F32Tensor("f32", {10, 10}, values),
              F32Tensor("vector", {100}, values),
              {"fp8", TensorDtype::kF8E4M3, {1, 1}, {std::byte{0x38}}},
              F32Tensor("fp8_scale_inv", {1, 1}, {bad})});
    const WeightReader reader(tensors, WeightStorage::kAsStored);
    const std::pair<std::string, absl::Status> kResults[] = {
        {"bf16", reader.Stack({"bf16"}).status()},
        {"f32", reader.Stack({"f32"}).status()},
        {"fp8", reader.Stack({"fp8"}).status()},
        {"vector", reader.Vector("vector").status()},
        {"bf16",
         WeightReader(tensors, WeightStorage::kF32).Stack({"bf16"}).status()}};
    for (const auto& [name, status] : kResults) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("tensor " + name +
                                      " has a value that is not finite"),
                std::string::npos)
          << status;
    }
  }
}

TEST(WeightMatrixTest, LargestFiniteValuesAreGood) {
  const float max = std::numeric_limits<float>::max();
  const ModelTensors tensors = Open({F32Tensor("w", {1, 2}, {max, -max})});
  EXPECT_TRUE(
      WeightReader(tensors, WeightStorage::kAsStored).Stack({"w"}).ok());
}

}  // namespace
}  // namespace baton
