// Follows one worker: who it is, whether it serves, and how busy it is.
#ifndef BATON_SERVER_ROUTER_WORKER_PROBER_H_
#define BATON_SERVER_ROUTER_WORKER_PROBER_H_

#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/router/worker_client.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_state.h"

namespace baton {

// Two streams stay open, of its health and of its load; a worker that drains or
// dies ends them, and is known to be unhealthy at once. Who it is is asked
// after they have begun, so it is the same process. A thread of its own from
// construction to destruction, so that one worker that hangs delays nobody.
// Thread-safe.
class WorkerProber final {
 public:
  struct Options {
    // Between the end of one try and the next; each waits for the worker until
    // its timeout.
    absl::Duration retry = absl::Milliseconds(50);
    absl::Duration timeout = absl::Seconds(1);
    // A worker that tells no load for so long is unhealthy.
    absl::Duration max_silence = absl::Seconds(3);
  };

  // Both are borrowed and outlive this.
  WorkerProber(Options options, WorkerId worker, WorkerClient* client,
               WorkerPool* pool);
  ~WorkerProber();
  WorkerProber(const WorkerProber&) = delete;
  WorkerProber& operator=(const WorkerProber&) = delete;

  // Asks at once who it is.
  void ProbeSoon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What the streams have told since they were begun.
  struct Told {
    int num_open = 0;  // Streams.
    absl::Status end;  // Of the first that ended, or !OK: not serving.
    bool serves = false;
    std::optional<v1::GetLoadResponse> load;
    absl::Time last_load = absl::InfinitePast();
    bool known = false;  // The pool knows who it is.
  };

  void Run();
  // From connecting until the worker is lost; why it was.
  absl::Status Follow() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AwaitFirst() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Introduce() ABSL_LOCKS_EXCLUDED(mutex_);
  // OK: somebody wants it to be asked again.
  absl::Status AwaitLoss() ABSL_LOCKS_EXCLUDED(mutex_);

  // The streams', on gRPC's threads.
  void OnHealth(const grpc::health::v1::HealthCheckResponse& health)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnLoad(v1::GetLoadResponse* load) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnStreamEnd(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  bool IsLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasFirst() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsCalled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLostOrCalled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasNoStream() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WhyLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const WorkerId worker_;
  WorkerClient* const client_;
  WorkerPool* const pool_;
  const MonotonicClock clock_;

  // Held while the pool is told, so that it is told in order.
  absl::Mutex mutex_;
  Told told_ ABSL_GUARDED_BY(mutex_);
  bool probe_soon_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last: it uses the others.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_PROBER_H_
