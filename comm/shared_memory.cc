#include "comm/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Null: not possible; errno says why.
std::byte* Map(int fd, size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

absl::Status CloseWithError(int fd, const std::string& what) {
  const int error = errno;
  close(fd);
  return absl::ErrnoToStatus(error, what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(
    size_t bytes) {
  const std::string what = absl::StrCat("shared memory of ", bytes, " bytes");
  const int fd = memfd_create("baton", MFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, what);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return CloseWithError(fd, what);
  }
  std::byte* const data = Map(fd, bytes);
  if (data == nullptr) return CloseWithError(fd, what);
  return std::unique_ptr<SharedMemory>(new SharedMemory(
      fd, data, bytes, absl::StrCat("/proc/", getpid(), "/fd/", fd)));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(
    const std::string& path, size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  struct stat file;
  if (fstat(fd, &file) != 0) return CloseWithError(fd, path);
  if (static_cast<size_t>(file.st_size) != bytes) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file.st_size, " bytes, not ", bytes));
  }
  std::byte* const data = Map(fd, bytes);
  if (data == nullptr) return CloseWithError(fd, path);
  return std::unique_ptr<SharedMemory>(new SharedMemory(fd, data, bytes, path));
}

SharedMemory::SharedMemory(int fd, std::byte* data, size_t bytes,
                           std::string path)
    : fd_(fd), data_(data), bytes_(bytes), path_(std::move(path)) {}

SharedMemory::~SharedMemory() {
  munmap(data_, bytes_);
  close(fd_);
}

}  // namespace baton
