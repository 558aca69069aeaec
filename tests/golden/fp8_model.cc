#include "tests/golden/fp8_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/logging.h"
#include "engine/model/fingerprint.h"
#include "engine/model/fp8.h"
#include "engine/model/safetensors.h"

namespace baton {
namespace {

bool IsProjection(const std::string& name) {
  return (name.ends_with("_proj.weight") ||
          name.ends_with("_proj_with_mqa.weight")) &&
         !name.ends_with(".eh_proj.weight");
}

std::vector<float> WidenBf16(const Tensor& tensor) {
  CHECK(tensor.dtype == TensorDtype::kBf16) << tensor.name;
  std::vector<float> values(tensor.bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  return values;
}

void Quantize(const Tensor& tensor, std::vector<TensorToWrite>* out) {
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  const int64_t scale_rows = NumFp8Blocks(static_cast<int>(rows));
  const int64_t scale_cols = NumFp8Blocks(static_cast<int>(cols));
  const std::vector<float> values = WidenBf16(tensor);
  const auto block_of = [&](int64_t i) {
    return i / cols / kFp8BlockSize * scale_cols + i % cols / kFp8BlockSize;
  };
  std::vector<float> scales(scale_rows * scale_cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    float& scale = scales[block_of(i)];
    scale = std::max(scale, std::fabs(values[i]));
  }
  for (float& scale : scales) scale /= kE4m3Max;
  TensorToWrite codes = {tensor.name, TensorDtype::kF8E4M3, tensor.shape, {}};
  for (int64_t i = 0; i < rows * cols; ++i) {
    codes.bytes.push_back(
        static_cast<std::byte>(EncodeE4m3(values[i] / scales[block_of(i)])));
  }
  out->push_back(std::move(codes));
  out->push_back(
      F32Tensor(tensor.name + "_scale_inv", {scale_rows, scale_cols}, scales));
}

}  // namespace

std::vector<TensorToWrite> QuantizeModel(const std::string& source_folder) {
  const absl::StatusOr<ModelTensors> source = ModelTensors::Open(source_folder);
  CHECK_OK(source.status());
  std::vector<TensorToWrite> tensors;
  for (const Tensor& tensor : source->tensors()) {
    if (IsProjection(tensor.name)) {
      Quantize(tensor, &tensors);
    } else {
      tensors.push_back({tensor.name,
                         tensor.dtype,
                         tensor.shape,
                         {tensor.bytes.begin(), tensor.bytes.end()}});
    }
  }
  return tensors;
}

std::string WriteQuantizedModel(const std::string& source_folder,
                                const std::string& config_path) {
  std::string folder = FreshTestFolder();
  std::filesystem::copy_file(config_path, folder + "/config.json");
  WriteSafetensors(folder + "/model.safetensors", QuantizeModel(source_folder));
  return folder;
}

std::string TensorHash(const TensorToWrite& tensor) {
  Hash128 hash;
  hash.Add(TensorDtypeName(tensor.dtype));
  hash.Add(std::as_bytes(std::span(tensor.shape)));
  hash.Add(tensor.bytes);
  return hash.Hex();
}

}  // namespace baton
