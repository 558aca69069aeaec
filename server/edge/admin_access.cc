#include "server/edge/admin_access.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/logging.h"

namespace baton {
namespace {

constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 4096;
constexpr char kScheme[] = "Bearer ";
constexpr unsigned char kLoopbackNet = 127;

// In a time that does not tell where they differ.
bool AreEqual(const std::string& presented, const std::string& token) {
  unsigned char difference = presented.size() == token.size() ? 0 : 1;
  for (size_t i = 0; i < presented.size(); ++i) {
    difference |= static_cast<unsigned char>(presented[i]) ^
                  static_cast<unsigned char>(token[i % token.size()]);
  }
  return difference == 0;
}

// What the file holds, one byte more than fits at most.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::InvalidArgumentError(std::strerror(errno));
  struct stat file = {};
  std::string text(kMaxTokenBytes + 2, '\0');
  absl::Status status;
  ssize_t length = -1;
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    status = absl::InvalidArgumentError("is no regular file");
  } else if ((file.st_mode & S_IRWXO) != 0) {
    status = absl::InvalidArgumentError(
        "is open to everybody on this host: chmod o= it");
  } else if ((length = read(fd, text.data(), text.size())) < 0) {
    status = absl::InvalidArgumentError(std::strerror(errno));
  }
  close(fd);
  if (!status.ok()) return status;
  text.resize(static_cast<size_t>(length));
  return text;
}

}  // namespace

bool IsLoopbackPeer(const std::string& peer) {
  const size_t scheme = peer.find(':');
  if (scheme == std::string::npos) return false;
  const std::string kind = peer.substr(0, scheme);
  if (kind == "unix" || kind == "unix-abstract") return true;
  std::string host = absl::StrReplaceAll(peer.substr(scheme + 1),
                                         {{"%5B", "["}, {"%5D", "]"}});
  host.resize(std::min(host.rfind(':'), host.size()));
  in_addr v4 = {};
  if (kind == "ipv4" && inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == kLoopbackNet;
  }
  if (kind != "ipv6" || host.size() < 2 || host.front() != '[' ||
      host.back() != ']') {
    return false;
  }
  in6_addr v6 = {};
  host = host.substr(1, host.size() - 2);
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == kLoopbackNet);
}

absl::StatusOr<std::string> ReadAdminToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadPrivateFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", text.status().message()));
  }
  if (!text->empty() && text->back() == '\n') text->pop_back();
  if (text->size() < kMinTokenBytes || text->size() > kMaxTokenBytes ||
      !std::all_of(text->begin(), text->end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must hold one line of ", kMinTokenBytes, " to ",
                     kMaxTokenBytes, " visible ASCII characters"));
  }
  return text;
}

absl::Status CheckAdminCall(const AdminCall& call,
                            const std::string& token_file) {
  if (!call.authorization.has_value()) {
    if (IsLoopbackPeer(call.peer)) return absl::OkStatus();
    if (token_file.empty()) {
      return absl::PermissionDeniedError(
          "only from this host; --admin_token_file would admit others");
    }
    return absl::UnauthenticatedError(
        "only from this host, or with the operators' token");
  }
  absl::Status refusal = absl::UnauthenticatedError("not the operators' token");
  const std::string scheme(kScheme);
  if (token_file.empty() ||
      call.authorization->compare(0, scheme.size(), scheme) != 0) {
    return refusal;
  }
  const absl::StatusOr<std::string> token = ReadAdminToken(token_file);
  if (!token.ok()) {
    LOG(ERROR) << "admin_token_file " << token.status().message();
    return refusal;
  }
  return AreEqual(call.authorization->substr(scheme.size()), *token)
             ? absl::OkStatus()
             : refusal;
}

}  // namespace baton
