// What one call shows of its worker, told to the pool.
#ifndef BATON_SERVER_ROUTER_CALL_REPORT_H_
#define BATON_SERVER_ROUTER_CALL_REPORT_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_state.h"

namespace baton {

// Of the thread that the call's events come on, but for answered(). What is
// borrowed outlives this.
class CallReport final {
 public:
  struct Options {
    WorkerPool* pool = nullptr;                // Borrowed.
    const CallReport* needs_answer = nullptr;  // Borrowed. What this one's
                                               // worker has to wait for.
    WorkerId worker;
    uint64_t call = 0;  // Of the route.
    std::chrono::system_clock::time_point deadline;
  };

  explicit CallReport(const Options& options) : options_(options) {}

  // It has brought a token, or computed the prompt. Any number of times.
  void OnAnswered();
  bool answered() const { return answered_; }
  // One of the two, once.
  void OnEnded(const absl::Status& status);
  void OnNeverBegan();

 private:
  const Options options_;
  std::atomic<bool> answered_ = false;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_CALL_REPORT_H_
