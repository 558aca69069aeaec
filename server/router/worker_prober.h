// Asks one worker, again and again, who it is and how busy.
#ifndef BATON_SERVER_ROUTER_WORKER_PROBER_H_
#define BATON_SERVER_ROUTER_WORKER_PROBER_H_

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/router/worker_client.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_state.h"

namespace baton {

// A thread of its own from construction to destruction, so that one worker that
// hangs delays nobody. Thread-safe.
class WorkerProber final {
 public:
  struct Options {
    // Between probes of a worker that is well.
    absl::Duration interval = absl::Seconds(1);
    // Between those of one that is not; each waits for it until its timeout.
    absl::Duration retry = absl::Milliseconds(50);
    absl::Duration timeout = absl::Seconds(1);  // Of one probe.
  };

  // Both are borrowed and outlive this.
  WorkerProber(Options options, WorkerId worker, WorkerClient* client,
               WorkerPool* pool);
  ~WorkerProber();
  WorkerProber(const WorkerProber&) = delete;
  WorkerProber& operator=(const WorkerProber&) = delete;

  // Probes at once, whenever the next one was due.
  void ProbeSoon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  bool Probe(bool wait);

  const Options options_;
  const WorkerId worker_;
  WorkerClient* const client_;
  WorkerPool* const pool_;

  absl::Mutex mutex_;
  bool probe_soon_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last: it uses the others.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_PROBER_H_
