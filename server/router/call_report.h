// What one call shows of its worker, told to the pool.
#ifndef BATON_SERVER_ROUTER_CALL_REPORT_H_
#define BATON_SERVER_ROUTER_CALL_REPORT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_state.h"

namespace baton {

// Of the thread that the call's events come on, but for answered() and
// OnKvLost(). What is borrowed outlives this.
class CallReport final {
 public:
  struct Options {
    WorkerPool* pool = nullptr;  // Borrowed.
    // Borrowed. Of a decode call, the prefill call whose KV it pulls: until
    // that is answered its worker has to wait. Null: there is none.
    CallReport* prefill = nullptr;
    WorkerId worker;
    uint64_t call = 0;  // Of the route.
    std::chrono::system_clock::time_point deadline;
  };

  explicit CallReport(const Options& options) : options_(options) {}

  // It has brought a token, or computed the prompt. Any number of times.
  void OnAnswered();
  bool answered() const { return answered_; }
  // One of the two, once. A worker that is full says when it may not be.
  void OnEnded(const absl::Status& status);
  void OnNeverBegan();

 private:
  // Of a prefill call, however it ends: what it exports did not arrive, by
  // either end's fault.
  void OnKvLost();

  const Options options_;
  std::atomic<bool> answered_ = false;
  std::atomic<bool> kv_lost_ = false;
};

// Of the calls along a route; prefill: if it has such a worker. Not movable
// once made: decode points to prefill.
struct RouteReports {
  std::optional<CallReport> prefill;
  std::optional<CallReport> decode;

  // To be called once. The pool is borrowed and outlives this.
  void Make(WorkerPool* pool, const Route& route,
            std::chrono::system_clock::time_point deadline);
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_CALL_REPORT_H_
