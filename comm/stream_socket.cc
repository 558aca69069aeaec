#include "comm/stream_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

namespace baton {
namespace {

constexpr int kBacklog = 512;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct Resolved {
  AddressList list{nullptr, &freeaddrinfo};
  int error = 0;  // getaddrinfo's.
};

Resolved Resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  Resolved resolved;
  addrinfo* list = nullptr;
  resolved.error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  resolved.list.reset(list);
  return resolved;
}

void SetOption(const FileDescriptor& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof value);
}

FileDescriptor MakeSocket(int family) {
  return FileDescriptor(
      socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

absl::StatusOr<FileDescriptor> ListenOnFirst(const addrinfo* list) {
  int error = EADDRNOTAVAIL;
  for (; list != nullptr; list = list->ai_next) {
    FileDescriptor socket = MakeSocket(list->ai_family);
    SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (list->ai_family == AF_INET6) {
      SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    if (bind(socket.get(), list->ai_addr, list->ai_addrlen) == 0 &&
        listen(socket.get(), kBacklog) == 0) {
      return socket;
    }
    error = errno;
  }
  return absl::UnavailableError(WithErrno("bind", error));
}

// Any IPv6 address first: it takes IPv4 as well.
absl::StatusOr<FileDescriptor> ListenOnAll(uint16_t port) {
  constexpr int kFlags = AI_PASSIVE | AI_NUMERICHOST;
  auto listener = ListenOnFirst(Resolve("::", port, kFlags).list.get());
  if (listener.ok()) return listener;
  return ListenOnFirst(Resolve("0.0.0.0", port, kFlags).list.get());
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (valid()) close(fd_);
}

absl::StatusOr<FileDescriptor> ListenOn(const HostPort& address) {
  const int numeric = address.host == "localhost" ? 0 : AI_NUMERICHOST;
  const Resolved resolved =
      Resolve(address.host, address.port, AI_PASSIVE | numeric);
  if (resolved.error != 0) return ListenOnAll(address.port);
  return ListenOnFirst(resolved.list.get());
}

absl::StatusOr<FileDescriptor> AcceptFrom(const FileDescriptor& listener) {
  const int fd =
      accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) return FileDescriptor(fd);
  const int error = errno;
  const bool full =
      error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  const std::string text = WithErrno("accept", error);
  if (full) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::StatusOr<FileDescriptor> StartConnecting(const HostPort& address,
                                               uint32_t attempt) {
  const std::string what = "cannot connect to " + FormatHostPort(address);
  const Resolved resolved = Resolve(address.host, address.port, 0);
  if (resolved.error != 0) {
    return absl::UnavailableError(what + ": " + gai_strerror(resolved.error));
  }
  uint32_t count = 0;
  for (const addrinfo* a = resolved.list.get(); a; a = a->ai_next) ++count;
  const addrinfo* chosen = resolved.list.get();
  for (uint32_t i = attempt % count; i > 0; --i) chosen = chosen->ai_next;
  FileDescriptor socket = MakeSocket(chosen->ai_family);
  if (connect(socket.get(), chosen->ai_addr, chosen->ai_addrlen) != 0 &&
      errno != EINPROGRESS) {
    return absl::UnavailableError(WithErrno(what, errno));
  }
  return socket;
}

absl::Status ConnectResult(const FileDescriptor& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(WithErrno("cannot connect", error));
}

void KeepAlive(const FileDescriptor& socket, absl::Duration timeout) {
  constexpr int kProbes = 3;
  const auto seconds = [](absl::Duration d) {
    return static_cast<int>(std::max<int64_t>(1, absl::ToInt64Seconds(d)));
  };
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds(timeout / 2));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL,
            seconds(timeout / (2 * kProbes)));
  SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

HostPort LocalAddress(const FileDescriptor& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST] = "";
  if (getsockname(socket.get(), generic, &size) != 0 ||
      getnameinfo(generic, size, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return {};
  }
  const in_port_t port =
      address.ss_family == AF_INET6
          ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
          : reinterpret_cast<const sockaddr_in&>(address).sin_port;
  return {.host = host, .port = ntohs(port)};
}

std::string WithErrno(std::string_view what, int error) {
  return std::string(what) + ": " +
         std::error_code(error, std::generic_category()).message();
}

}  // namespace baton
