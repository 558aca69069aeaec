// Who may ask what baton.v1.AdminService does: whoever is on this host's
// loopback or a Unix socket, and who knows the operators' token.
#ifndef BATON_SERVER_EDGE_ADMIN_ACCESS_H_
#define BATON_SERVER_EDGE_ADMIN_ACCESS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// `peer` as gRPC has it: ipv4:127.0.0.1:80, ipv6:%5B::1%5D:80, unix:path.
bool IsLoopbackPeer(const std::string& peer);

// The file's one line, of 16 to 4096 visible ASCII characters. INVALID_ARGUMENT
// says what is wrong with it, not what it is: nobody but owner and group may
// read or write the file.
absl::StatusOr<std::string> ReadAdminToken(const std::string& path);

struct AdminCall {
  std::string peer;
  std::optional<std::string> authorization;  // "Bearer TOKEN".
};

// PERMISSION_DENIED, or UNAUTHENTICATED where a (right) token would help.
// `token_file`: empty, nobody has a token. It is read for each call that
// presents one, so that a new token needs no new process.
absl::Status CheckAdminCall(const AdminCall& call,
                            const std::string& token_file);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_ADMIN_ACCESS_H_
