// Tensors of a model folder that are read when they are needed.
#ifndef BATON_ENGINE_MODEL_TENSOR_FILES_H_
#define BATON_ENGINE_MODEL_TENSOR_FILES_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/safetensors.h"

namespace baton {

// Keeps the files open, but maps nothing: so they take no memory, and what
// cannot be read any more is an error here, and no signal. A file that is
// removed or replaced meanwhile is still read as it was; one that is written to
// is refused. Immutable, so thread-safe.
class TensorFiles final {
 public:
  // Of all tensors of `model`, which is not needed afterwards. An error names
  // a file that has changed since `model` mapped it.
  static absl::StatusOr<std::unique_ptr<const TensorFiles>> Open(
      const ModelTensors& model);
  ~TensorFiles();
  TensorFiles(const TensorFiles&) = delete;
  TensorFiles& operator=(const TensorFiles&) = delete;

  // Copies of all tensors whose names begin so. DATA_LOSS naming the file if it
  // has changed or cannot be read.
  absl::StatusOr<ModelTensors> Read(std::string_view prefix) const;

 private:
  class File;
  // Sorted by name; their bytes have a size alone.
  struct StoredTensor;

  TensorFiles();

  std::string folder_;
  std::map<std::string, std::unique_ptr<const File>> files_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TENSOR_FILES_H_
