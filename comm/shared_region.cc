#include "comm/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "comm/sealed_bytes.h"
#include "comm/wire.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif

namespace baton {
namespace {

// Its size never changes: no peer's read can run into a bus error.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// An open file, for one scope.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// What a region's file is called where the system shows it: no other region,
// of whatever process, has the same.
std::string NameOf(uint64_t nonce) { return absl::StrCat("baton-kv-", nonce); }

std::string FdPath(pid_t pid, int fd) {
  return absl::StrCat("/proc/", pid, "/fd/", fd);
}

absl::Status NotAsMuch(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(bytes, " bytes of shared memory: ", std::strerror(errno)));
}

// That `fd` is the file of this name, complete and of fixed size. A process
// that died may have left its number, and that of its file, to others.
absl::Status CheckFile(int fd, uint64_t nonce, size_t bytes) {
  char target[PATH_MAX];
  const ssize_t length =
      readlink(FdPath(getpid(), fd).c_str(), target, sizeof(target));
  const std::string name = absl::StrCat("/memfd:", NameOf(nonce), " (deleted)");
  struct stat file = {};
  if (length < 0 || name != std::string(target, length) ||
      fstat(fd, &file) != 0 || static_cast<size_t>(file.st_size) < bytes ||
      (fcntl(fd, F_GET_SEALS) & kSeals) != kSeals) {
    return absl::NotFoundError("that region is no more");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PopulateZeroed(void* memory, size_t bytes) {
  if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL) return NotAsMuch(bytes);
  std::memset(memory, 0, bytes);  // The kernel is older.
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(
    size_t bytes) {
  const uint64_t nonce = RandomBits();
  OwnedFd fd(
      memfd_create(NameOf(nonce).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return NotAsMuch(bytes);
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return NotAsMuch(bytes);
  //   key := sealed(base:u64 size:u64 nonce:u64 path)
  WireWriter key;
  key.Int(reinterpret_cast<uint64_t>(memory)).Int(uint64_t{bytes}).Int(nonce);
  std::unique_ptr<SharedRegion> region(new SharedRegion(
      fd.get(), static_cast<std::byte*>(memory), bytes,
      SealBytes(key.Take().append(FdPath(getpid(), fd.get())))));
  fd.Release();
  RETURN_IF_ERROR(PopulateZeroed(memory, bytes));
  return region;
}

SharedRegion::SharedRegion(int fd, std::byte* data, size_t bytes,
                           std::string key)
    : fd_(fd), data_(data), bytes_(bytes), key_(std::move(key)) {}

SharedRegion::~SharedRegion() {
  munmap(data_, bytes_);
  close(fd_);
}

absl::StatusOr<std::unique_ptr<SharedRegionView>> SharedRegionView::Map(
    std::string_view key) {
  WireReader in(UnsealBytes(key).value_or(""));
  const auto base = in.Int<uint64_t>();
  const auto bytes = in.Int<uint64_t>();
  const auto nonce = in.Int<uint64_t>();
  const std::string path(in.rest());
  if (path.empty()) return absl::InvalidArgumentError("remote_key: damaged");
  // Whatever has that number by now, a pipe, say: it is not waited for.
  const OwnedFd fd(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, path);
  RETURN_IF_ERROR(CheckFile(fd.get(), nonce, bytes));
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, path);
  return std::unique_ptr<SharedRegionView>(
      new SharedRegionView(static_cast<const std::byte*>(memory), base, bytes));
}

SharedRegionView::~SharedRegionView() {
  munmap(const_cast<std::byte*>(address_), bytes_);
}

}  // namespace baton
