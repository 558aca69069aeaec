// Non-blocking TCP sockets: listen, connect, keep alive.
#ifndef BATON_COMM_STREAM_SOCKET_H_
#define BATON_COMM_STREAM_SOCKET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/host_port.h"

namespace baton {

// Owns a file descriptor; -1 is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Binds exactly to an address or to localhost; of any other name, which others
// may resolve before this host can, to all addresses. UNAVAILABLE: cannot.
absl::StatusOr<FileDescriptor> ListenOn(const HostPort& address);
// The next connection that waits, or none: UNAVAILABLE. RESOURCE_EXHAUSTED:
// there is one, but no room for it.
absl::StatusOr<FileDescriptor> AcceptFrom(const FileDescriptor& listener);

// Begins to connect; writable when that has ended. Where a name has several
// addresses, it is the turn of the one numbered `attempt`. Blocks while a name
// is resolved.
absl::StatusOr<FileDescriptor> StartConnecting(const HostPort& address,
                                               uint32_t attempt);
// How that ended.
absl::Status ConnectResult(const FileDescriptor& socket);

// A host that is silent for `timeout` is gone: then reads fail. Small writes go
// out at once.
void KeepAlive(const FileDescriptor& socket, absl::Duration timeout);

// Its own numeric address and port.
HostPort LocalAddress(const FileDescriptor& socket);

// "<what>: <errno's text>".
std::string WithErrno(std::string_view what, int error);

}  // namespace baton

#endif  // BATON_COMM_STREAM_SOCKET_H_
