// What workers say of themselves, asked all at once.
#ifndef BATON_SERVER_CLI_WORKER_POLL_H_
#define BATON_SERVER_CLI_WORKER_POLL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {

struct WorkerSample {
  absl::Time time = {};      // Of the answer.
  absl::Status status = {};  // Not OK: nothing else is known.
  bool is_serving = false;
  v1::GetWorkerInfoResponse info = {};
  v1::GetLoadResponse load = {};
};

// Keeps the connections. One thread at a time.
class WorkerPoll {
 public:
  // Each host:port. Borrows the clock.
  WorkerPoll(const std::vector<std::string>& endpoints, const Clock* clock);
  ~WorkerPoll();
  WorkerPoll(const WorkerPoll&) = delete;
  WorkerPoll& operator=(const WorkerPoll&) = delete;

  // In the order of the endpoints. Who does not answer within `timeout` is not
  // waited for.
  std::vector<WorkerSample> Ask(absl::Duration timeout);

 private:
  struct Worker;
  WorkerSample AskOne(Worker* worker, absl::Duration timeout) const;

  const Clock* const clock_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace baton

#endif  // BATON_SERVER_CLI_WORKER_POLL_H_
