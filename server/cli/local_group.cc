#include "server/cli/local_group.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<std::unique_ptr<ReservedPort>> ReservedPort::Find() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "a free port");
  std::unique_ptr<ReservedPort> reserved(new ReservedPort(fd));
  // Bound and never listening, it yields to a listener that has this too.
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
          0) {
    return absl::ErrnoToStatus(errno, "a free port");
  }
  return reserved;
}

ReservedPort::~ReservedPort() { close(fd_); }

std::string ReservedPort::endpoint() const {
  sockaddr_in address = {};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

std::vector<std::string> GroupFlagsOf(const LocalGroup& group,
                                      uint32_t process) {
  if (group.ep_size == 1) return {};
  std::vector<std::string> flags = {absl::StrCat("--ep_size=", group.ep_size)};
  if (group.num_processes == 1) return flags;
  const uint32_t local_ranks = group.ep_size / group.num_processes;
  flags.push_back(absl::StrCat("--local_ranks=", local_ranks));
  flags.push_back(absl::StrCat("--rank_offset=", process * local_ranks));
  flags.push_back(absl::StrCat("--leader=", group.leader));
  return flags;
}

}  // namespace baton
