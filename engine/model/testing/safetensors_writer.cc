#include "engine/model/testing/safetensors_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

TensorToWrite F32Tensor(std::string name, std::vector<int64_t> shape,
                        const std::vector<float>& values) {
  return {std::move(name), TensorDtype::kF32, std::move(shape),
          BytesOf(values)};
}

TensorToWrite Bf16Tensor(std::string name, std::vector<int64_t> shape,
                         const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  rounded.reserve(values.size());
  for (const float value : values) rounded.push_back(RoundToBf16(value));
  return {std::move(name), TensorDtype::kBf16, std::move(shape),
          BytesOf(rounded)};
}

void WriteSafetensors(const std::string& path,
                      const std::vector<TensorToWrite>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  size_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const size_t end = offset + tensor.bytes.size();
    header[tensor.name] = {{"dtype", TensorDtypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << text;
  for (const TensorToWrite& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  CHECK(file.good()) << path;
}

void WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  CHECK(file.good()) << path;
}

std::string FreshTestFolder() {
  const testing::TestInfo* test =
      testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + "." + test->name();
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace baton
