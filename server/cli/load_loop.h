// Keeps a fixed number of generations running against a router.
#ifndef BATON_SERVER_CLI_LOAD_LOOP_H_
#define BATON_SERVER_CLI_LOAD_LOOP_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/cli/token_timing.h"

namespace baton {

struct LoadLoopOptions {
  // Closed: each client sends its next request when its last one has ended.
  uint32_t clients = 1;
  uint32_t requests = 1;
  // Not empty: open. `requests` of them are sent at these times from the start,
  // ascending, whatever has ended; latencies count from there.
  std::vector<absl::Duration> send_times = {};
  absl::Duration timeout = absl::Minutes(10);  // Of a request.
};

// Requests are callbacks on gRPC's threads, none has a thread of its own.
// Thread-safe, but for Start and Wait, which are for one thread.
class LoadLoop {
 public:
  using MakeRequest = std::function<v1::GenerateRequest(uint32_t index)>;

  // Borrows the stub. `make_request` is called on several threads at once.
  LoadLoop(LoadLoopOptions options, v1::InferenceService::Stub* stub,
           MakeRequest make_request);
  // REQUIRES: not started, or Wait() has returned true.
  ~LoadLoop();
  LoadLoop(const LoadLoop&) = delete;
  LoadLoop& operator=(const LoadLoop&) = delete;

  void Start();
  // Blocks until all requests have ended, true, or `timeout` has passed. An
  // open loop sends only in here.
  bool Wait(absl::Duration timeout);

  struct Results {
    std::vector<TokenTiming> requests;  // Those that went well.
    uint32_t failed = 0;
    grpc::Status first_error;
  };
  // So far.
  uint32_t ended() const;
  // REQUIRES: Wait() has returned true.
  Results TakeResults();

 private:
  class Call;
  bool open() const { return !options_.send_times.empty(); }
  void StartNext(absl::Time sent) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those due; returns when the next one is.
  absl::Time SendDue() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnded(const grpc::Status& status, TokenTiming timing)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool AllGone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const LoadLoopOptions options_;
  v1::InferenceService::Stub* const stub_;
  const MakeRequest make_request_;
  const MonotonicClock clock_;
  absl::Time start_;       // Start's and Wait's thread.
  uint32_t num_sent_ = 0;  // Likewise: of send_times.

  mutable absl::Mutex mutex_;
  uint32_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  Results results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_CLI_LOAD_LOOP_H_
