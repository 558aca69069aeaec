#include "server/router/worker_prober.h"

#include <algorithm>

namespace baton {

WorkerProber::WorkerProber(Options options, WorkerId worker,
                           WorkerClient* client, WorkerPool* pool)
    : options_(options),
      worker_(worker),
      client_(client),
      pool_(pool),
      thread_([this] { Run(); }) {}

WorkerProber::~WorkerProber() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    probe_soon_ = true;
  }
  client_->CancelProbes();
  thread_.join();
}

void WorkerProber::ProbeSoon() {
  absl::MutexLock lock(&mutex_);
  probe_soon_ = true;
}

void WorkerProber::Run() {
  absl::Duration retry = options_.first_retry;
  while (true) {
    absl::Duration wait = options_.interval;
    if (Probe()) {
      retry = options_.first_retry;
    } else {
      wait = retry;
      retry = std::min(2 * retry, options_.interval);
    }
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&probe_soon_), wait);
    if (stopping_) return;
    probe_soon_ = false;
  }
}

bool WorkerProber::Probe() {
  const absl::Time deadline = absl::Now() + options_.timeout;
  absl::StatusOr<ProbeAnswer> answer =
      client_->Probe(absl::ToChronoTime(deadline));
  if (!answer.ok()) {
    pool_->OnProbeFailed(worker_, answer.status());
    return false;
  }
  pool_->OnProbe(worker_, answer->info, answer->load);
  return true;
}

}  // namespace baton
