// A worker within a test's process, for tests of what calls it: those see no
// engine.
#ifndef BATON_TESTS_INTEGRATION_IN_PROCESS_WORKER_H_
#define BATON_TESTS_INTEGRATION_IN_PROCESS_WORKER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "proto/baton/v1/worker.pb.h"
#include "server/edge/stream_budget.h"

namespace baton {

class TestWorker;

// A unified one over FakeModelRunner, with drafts that are all right. Dies when
// anything is left of its requests at its end.
class InProcessWorker final {
 public:
  struct Options {
    v1::GetWorkerInfoResponse info;
    StreamLimits streams;
    uint32_t max_running_requests = 1;
    uint32_t max_waiting_requests = 1;
    uint32_t num_blocks = 1;
  };

  explicit InProcessWorker(const Options& options);
  ~InProcessWorker();

  const std::string& address() const;
  StreamBudget& streams();
  uint64_t num_calls() const;
  uint32_t num_paused() const;
  // Tokens are being drawn.
  bool is_busy() const;

 private:
  const std::unique_ptr<TestWorker> worker_;
};

}  // namespace baton

#endif  // BATON_TESTS_INTEGRATION_IN_PROCESS_WORKER_H_
