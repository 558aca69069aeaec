// Which workers there are to be: what flags, a file and DNS say.
#ifndef BATON_SERVER_ROUTER_WORKER_DIRECTORY_H_
#define BATON_SERVER_ROUTER_WORKER_DIRECTORY_H_

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/router/worker_pool.h"

namespace baton {

// One entry of a list of workers.
struct WorkerEntry {
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  std::string host;  // With dns: a name, each of whose addresses is a worker.
  std::string port;
  bool is_dns_name = false;
};

// "host:port", "[v6]:port" or "dns:NAME:PORT", with a port of 1 .. 65535.
absl::StatusOr<WorkerEntry> ParseWorkerEntry(v1::WorkerRole role,
                                             std::string_view text);

// Lines of
//   [prefill|decode|unified entry] [# comment]
// An error begins with path:line. At most kMaxWorkers entries.
absl::StatusOr<std::vector<WorkerEntry>> ParseWorkersFile(
    std::string_view path, std::string_view text);

// Pure. Thread-compatible.
class WorkerDirectory final {
 public:
  explicit WorkerDirectory(std::vector<WorkerEntry> from_flags)
      : from_flags_(std::move(from_flags)) {}

  // In the place of what the file said before.
  void SetFile(std::vector<WorkerEntry> entries);
  // Names to look up.
  std::set<std::string> Names() const;
  // What a look-up found, "10.0.0.1" or "[fd00::1]". Beside IPv4 addresses
  // those of IPv6 count for nothing: each host of a service that has both would
  // be there twice. A name keeps what it had until then. Ignored, if it is
  // listed no more.
  void SetAddresses(const std::string& name, std::vector<std::string> hosts);
  size_t num_addresses(const std::string& name) const;
  // Flags first. One may be there twice.
  std::vector<WorkerAddress> Workers() const;

 private:
  void AddTo(std::vector<WorkerAddress>* workers,
             const WorkerEntry& entry) const;

  const std::vector<WorkerEntry> from_flags_;
  std::vector<WorkerEntry> from_file_;
  std::map<std::string, std::vector<std::string>> hosts_;  // By name.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_DIRECTORY_H_
