#include "engine/model/tensor_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace baton {
namespace {

absl::Status Changed(const std::string& path) {
  return absl::DataLossError(absl::StrCat(
      path, ": has changed since it was opened; a model's files must stay as ",
      "they are while it is served"));
}

}  // namespace

// Closed by the destructor.
class TensorFiles::File {
 public:
  static absl::StatusOr<std::unique_ptr<const File>> Open(
      const std::string& path, const FileStamp& stamp) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
    }
    std::unique_ptr<const File> file(new File(path, stamp, fd));
    RETURN_IF_ERROR(file->CheckUnchanged());
    return file;
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  absl::Status Read(uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t count =
          pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        return absl::DataLossError(absl::StrCat(path_, ": ", strerror(errno)));
      }
      if (count == 0) return Changed(path_);
      offset += count;
      to = to.subspan(count);
    }
    return absl::OkStatus();
  }

  // Behind a read: what was read is of the file as it was opened.
  absl::Status CheckUnchanged() const {
    struct stat status = {};
    const bool same =
        fstat(fd_, &status) == 0 && FileStamp::Of(status) == stamp_;
    return same ? absl::OkStatus() : Changed(path_);
  }

 private:
  File(std::string path, const FileStamp& stamp, int fd)
      : path_(std::move(path)), stamp_(stamp), fd_(fd) {}

  const std::string path_;
  const FileStamp stamp_;
  const int fd_;
};

struct TensorFiles::StoredTensor {
  Tensor tensor;  // Without its bytes.
  size_t num_bytes = 0;
  const File* file = nullptr;
};

TensorFiles::TensorFiles() = default;
TensorFiles::~TensorFiles() = default;

absl::StatusOr<std::unique_ptr<const TensorFiles>> TensorFiles::Open(
    const ModelTensors& model) {
  std::unique_ptr<TensorFiles> opened(new TensorFiles);
  opened->folder_ = model.folder();
  for (const auto& [path, stamp] : model.files()) {
    ASSIGN_OR_RETURN(opened->files_[path], File::Open(path, stamp));
  }
  opened->tensors_.reserve(model.tensors().size());
  for (const Tensor& tensor : model.tensors()) {
    StoredTensor& stored = opened->tensors_.emplace_back(
        StoredTensor{.tensor = tensor,
                     .num_bytes = tensor.bytes.size(),
                     .file = opened->files_.at(tensor.file).get()});
    stored.tensor.bytes = {};
  }
  return opened;
}

absl::StatusOr<ModelTensors> TensorFiles::Read(std::string_view prefix) const {
  const auto first = std::ranges::lower_bound(
      tensors_, prefix, {}, [](const StoredTensor& stored) -> std::string_view {
        return stored.tensor.name;
      });
  const auto end =
      std::find_if_not(first, tensors_.end(), [&](const StoredTensor& stored) {
        return stored.tensor.name.starts_with(prefix);
      });
  size_t num_bytes = 0;
  for (auto it = first; it != end; ++it) num_bytes += it->num_bytes;
  std::vector<std::byte> memory(num_bytes);
  std::span<std::byte> rest = memory;
  std::vector<Tensor> copies;
  for (auto it = first; it != end; ++it) {
    const std::span<std::byte> bytes = rest.first(it->num_bytes);
    rest = rest.subspan(it->num_bytes);
    RETURN_IF_ERROR(it->file->Read(it->tensor.offset, bytes));
    RETURN_IF_ERROR(it->file->CheckUnchanged());
    copies.emplace_back(it->tensor).bytes = bytes;
  }
  return ModelTensors::OfCopies(folder_, std::move(copies), std::move(memory));
}

}  // namespace baton
