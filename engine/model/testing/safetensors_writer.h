// Writes safetensors files for tests.
#ifndef BATON_ENGINE_MODEL_TESTING_SAFETENSORS_WRITER_H_
#define BATON_ENGINE_MODEL_TESTING_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"

namespace baton {

struct TensorToWrite {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

TensorToWrite F32Tensor(std::string name, std::vector<int64_t> shape,
                        const std::vector<float>& values);
// Rounded to nearest even.
TensorToWrite Bf16Tensor(std::string name, std::vector<int64_t> shape,
                         const std::vector<float>& values);

// Dies if the file cannot be written.
void WriteSafetensors(const std::string& path,
                      const std::vector<TensorToWrite>& tensors);
void WriteTextFile(const std::string& path, const std::string& text);

// An empty folder below the test's own, named after the running test.
std::string FreshTestFolder();

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TESTING_SAFETENSORS_WRITER_H_
