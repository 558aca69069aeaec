// Memory that processes of one host share, without a name that could be left
// behind.
#ifndef BATON_COMM_SHARED_MEMORY_H_
#define BATON_COMM_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace baton {

// Zeroed; a page takes memory from its first use on, so sizes may be those of
// the worst case. Children of a fork share it as well. Thread-compatible.
class SharedMemory final {
 public:
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(size_t bytes);
  // `path`: of a live process of this host and user that created it.
  // INVALID_ARGUMENT: it is not of this size.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(
      const std::string& path, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  // What others open, while this lives.
  const std::string& path() const { return path_; }

 private:
  SharedMemory(int fd, std::byte* data, size_t bytes, std::string path);

  const int fd_;
  std::byte* const data_;
  const size_t bytes_;
  const std::string path_;
};

}  // namespace baton

#endif  // BATON_COMM_SHARED_MEMORY_H_
