#include "engine/model/weight_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/model/fp8.h"

namespace baton {
namespace {

float WidenBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Without a branch a value, so that the compiler can vectorise it.
bool AllFinite(std::span<const uint16_t> values) {
  uint32_t found = 0;
  for (const uint16_t bits : values) found |= (bits & 0x7f80) == 0x7f80 ? 1 : 0;
  return found == 0;
}

bool AllFinite(std::span<const float> values) {
  uint32_t found = 0;
  for (const float value : values) {
    found |=
        (std::bit_cast<uint32_t>(value) & 0x7f800000) == 0x7f800000 ? 1 : 0;
  }
  return found == 0;
}

// The file may hold a tensor at any alignment, so its bytes are copied first.
template <typename T>
void CopyElements(const Tensor& tensor, T* out) {
  if (tensor.bytes.empty()) return;
  std::memcpy(out, tensor.bytes.data(), tensor.bytes.size());
}

size_t NumElements(const Tensor& tensor) {
  size_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  return elements;
}

const Tensor& Get(const ModelTensors& tensors, const std::string& name) {
  const Tensor* tensor = tensors.Find(name);
  CHECK(tensor != nullptr) << name;
  return *tensor;
}

absl::Status NotFinite(const Tensor& tensor) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name,
                   " has a value that is not finite"));
}

absl::Status CopyBf16(const Tensor& tensor, uint16_t* out) {
  CopyElements(tensor, out);
  return AllFinite(std::span(out, NumElements(tensor))) ? absl::OkStatus()
                                                        : NotFinite(tensor);
}

void Dequantize(const Tensor& tensor, const Tensor& scales, float* out) {
  const int rows = static_cast<int>(tensor.shape[0]);
  const int cols = static_cast<int>(tensor.shape[1]);
  std::vector<float> scale_values(NumElements(scales));
  CopyElements(scales, scale_values.data());
  DequantizeFp8(
      Dense(reinterpret_cast<const uint8_t*>(tensor.bytes.data()), rows, cols),
      Dense<const float>(scale_values.data(), NumFp8Blocks(rows),
                         NumFp8Blocks(cols)),
      Dense(out, rows, cols));
}

absl::Status CopyWidened(const ModelTensors& tensors, const Tensor& tensor,
                         float* out) {
  const size_t elements = NumElements(tensor);
  if (tensor.dtype == TensorDtype::kBf16) {
    std::vector<uint16_t> bits(elements);
    CopyElements(tensor, bits.data());
    std::ranges::transform(bits, out, WidenBf16);
  } else if (tensor.dtype == TensorDtype::kF32) {
    CopyElements(tensor, out);
  } else {
    Dequantize(tensor, Get(tensors, tensor.name + "_scale_inv"), out);
  }
  return AllFinite(std::span(out, elements)) ? absl::OkStatus()
                                             : NotFinite(tensor);
}

template <typename T>
std::vector<T> Transposed(const T* in, int rows, int cols) {
  std::vector<T> out(static_cast<size_t>(rows) * cols);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      out[static_cast<size_t>(c) * rows + r] =
          in[static_cast<size_t>(r) * cols + c];
    }
  }
  return out;
}

}  // namespace

PackedWeight WeightMatrix::Pack() const { return PackRows(0, rows); }

PackedWeight WeightMatrix::PackRows(int first, int num) const {
  const size_t offset = static_cast<size_t>(first) * cols;
  if (bf16.empty()) {
    return PackedWeight::FromF32(f32.data() + offset, num, cols, cols);
  }
  return PackedWeight::FromBf16(bf16.data() + offset, num, cols, cols);
}

PackedWeight WeightMatrix::PackRowsTransposed(int first, int num) const {
  const size_t offset = static_cast<size_t>(first) * cols;
  if (bf16.empty()) {
    return PackedWeight::FromF32(
        Transposed(f32.data() + offset, num, cols).data(), cols, num, num);
  }
  return PackedWeight::FromBf16(
      Transposed(bf16.data() + offset, num, cols).data(), cols, num, num);
}

void WeightMatrix::CopyRow(int row, float* out) const {
  const size_t offset = static_cast<size_t>(row) * cols;
  if (bf16.empty()) {
    std::copy_n(f32.data() + offset, cols, out);
  } else {
    std::transform(bf16.data() + offset, bf16.data() + offset + cols, out,
                   WidenBf16);
  }
}

absl::StatusOr<std::vector<float>> WeightReader::Vector(
    const std::string& name) const {
  const Tensor& tensor = Get(tensors_, name);
  std::vector<float> values(NumElements(tensor));
  RETURN_IF_ERROR(CopyWidened(tensors_, tensor, values.data()));
  return values;
}

WeightReader::StackedShape WeightReader::ShapeOf(
    std::initializer_list<std::string> names) const {
  StackedShape shape = {.bf16 = storage_ != WeightStorage::kF32};
  for (const std::string& name : names) {
    const Tensor& tensor = Get(tensors_, name);
    shape.rows += static_cast<int>(tensor.shape[0]);
    shape.cols = static_cast<int>(tensor.shape[1]);
    shape.bf16 = shape.bf16 && tensor.dtype == TensorDtype::kBf16;
  }
  return shape;
}

size_t WeightReader::PackedBytes(
    std::initializer_list<std::string> names) const {
  const StackedShape shape = ShapeOf(names);
  return PackedWeight::SizeBytes(
      shape.rows, shape.cols,
      shape.bf16 ? WeightDtype::kBf16 : WeightDtype::kF32);
}

absl::StatusOr<WeightMatrix> WeightReader::Stack(
    std::initializer_list<std::string> names) const {
  const auto [rows, cols, bf16] = ShapeOf(names);
  WeightMatrix matrix = {.rows = rows, .cols = cols, .bf16 = {}, .f32 = {}};
  const size_t elements = static_cast<size_t>(rows) * cols;
  if (bf16) {
    matrix.bf16.resize(elements);
  } else {
    matrix.f32.resize(elements);
  }
  size_t offset = 0;
  for (const std::string& name : names) {
    const Tensor& tensor = Get(tensors_, name);
    RETURN_IF_ERROR(
        bf16 ? CopyBf16(tensor, matrix.bf16.data() + offset)
             : CopyWidened(tensors_, tensor, matrix.f32.data() + offset));
    offset += NumElements(tensor);
  }
  return matrix;
}

}  // namespace baton
