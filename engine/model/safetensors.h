// Tensors of a model folder in the safetensors format, memory-mapped.
//
//   file    := header_bytes:u64le header data
//   header  := JSON object, name -> {dtype, shape, data_offsets: [begin, end)}
//              and perhaps "__metadata__" -> {string: string}
//   data    := the tensors, row-major, little endian; offsets count from its
//              start; no holes, no overlap, nothing behind the last one
#ifndef BATON_ENGINE_MODEL_SAFETENSORS_H_
#define BATON_ENGINE_MODEL_SAFETENSORS_H_

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

enum class TensorDtype {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

std::string_view TensorDtypeName(TensorDtype dtype);

// One tensor; the bytes lie in the mapped file, or in a copy, at any alignment.
struct Tensor {
  std::string name;
  std::string file;  // Where it came from, for errors.
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // Of the bytes in the file.
  std::span<const std::byte> bytes;
};

// A file as it was when it was opened.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = 0;
  int64_t modified_seconds = 0;
  int64_t modified_nanoseconds = 0;

  static FileStamp Of(const struct stat& status);
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

std::string ShapeText(std::span<const int64_t> shape);

// All tensors of a file's content, by position. INVALID_ARGUMENT naming `file`
// and the tensor at fault for anything but a well-formed file.
absl::StatusOr<std::vector<Tensor>> ParseSafetensors(
    std::span<const std::byte> content, const std::string& file);

// All tensors of a folder: model.safetensors, or the shards that
// model.safetensors.index.json names. Immutable, so thread-safe; the files must
// not shrink while it lives.
class ModelTensors final {
 public:
  // NOT_FOUND for a missing file, INVALID_ARGUMENT for a malformed one or for a
  // shard outside the folder.
  static absl::StatusOr<ModelTensors> Open(const std::string& folder);
  ModelTensors(ModelTensors&& other) noexcept;
  ModelTensors& operator=(ModelTensors&& other) noexcept;
  ~ModelTensors();

  const std::string& folder() const { return folder_; }
  // Sorted by name.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Null if there is none.
  const Tensor* Find(std::string_view name) const;
  // The files that are mapped, by Tensor::file.
  const std::map<std::string, FileStamp>& files() const { return stamps_; }

  // Of copies, whose bytes lie in `memory`.
  static ModelTensors OfCopies(std::string folder, std::vector<Tensor> copies,
                               std::vector<std::byte> memory);

 private:
  class MappedFile;

  explicit ModelTensors(std::string folder);
  // The tensors of one file of the folder, which stays mapped.
  absl::StatusOr<std::vector<Tensor>> Map(const std::string& name);
  absl::Status OpenShards(const std::string& index_path);

  std::string folder_;
  std::vector<std::unique_ptr<const MappedFile>> files_;
  std::map<std::string, FileStamp> stamps_;
  std::vector<std::byte> memory_;
  std::vector<Tensor> tensors_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_SAFETENSORS_H_
