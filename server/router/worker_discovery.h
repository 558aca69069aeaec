// Watches a file and DNS for workers that come and go.
#ifndef BATON_SERVER_ROUTER_WORKER_DISCOVERY_H_
#define BATON_SERVER_ROUTER_WORKER_DISCOVERY_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/router/worker_directory.h"
#include "server/router/worker_pool.h"

namespace baton {

// Of a list of workers.
inline constexpr size_t kMaxWorkersFileBytes = 256 * 1024;

// The hosts that a name stands for, as WorkerDirectory takes them, sorted. May
// block for as long as the system's resolver does.
absl::StatusOr<std::vector<std::string>> LookUpHosts(const std::string& name);

void LogWarning(const std::string& line);

// What the file says; an error names the path, and the line if one is wrong.
absl::StatusOr<std::vector<WorkerEntry>> ReadWorkersFile(
    const std::string& path);

// Reads the file again and again, so it makes no difference how it changes: in
// place, by a rename, or by the link above it, as a ConfigMap's. A file that is
// gone, empty or wrong, or a name that is not found, leaves what was known,
// with a line in the log. Thread-safe.
class WorkerDiscovery final {
 public:
  using LookUp = std::function<absl::StatusOr<std::vector<std::string>>(
      const std::string& name)>;
  struct Options {
    std::vector<WorkerEntry> entries = {};            // Of the flags.
    std::string workers_file = {};                    // Empty: none.
    absl::Duration file_interval = absl::Seconds(1);  // Between two readings.
    absl::Duration dns_interval = absl::Seconds(5);   // And two look-ups.
    // Called on a thread that nobody waits for, perhaps after the end.
    LookUp look_up = LookUpHosts;
    // What is wrong, and that it is right again. As on_change.
    std::function<void(const std::string& line)> log = LogWarning;
    // All workers, first at once and then whenever the list changes; one call
    // at a time, none after the end. Must not block.
    std::function<void(const std::vector<WorkerAddress>& workers)> on_change =
        {};
  };

  // An error: the file is not there or wrong.
  static absl::StatusOr<std::unique_ptr<WorkerDiscovery>> Start(
      Options options);
  ~WorkerDiscovery();
  WorkerDiscovery(const WorkerDiscovery&) = delete;
  WorkerDiscovery& operator=(const WorkerDiscovery&) = delete;

 private:
  class State;

  // Shared: see state_.
  explicit WorkerDiscovery(std::shared_ptr<State> state);

  // Shared with the thread that looks names up: DNS may keep it for longer than
  // a process that ends should wait.
  const std::shared_ptr<State> state_;
  std::thread file_thread_;  // If there is a file.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_DISCOVERY_H_
