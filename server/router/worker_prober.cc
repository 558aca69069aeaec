#include "server/router/worker_prober.h"

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
  // A worker that is well is found missing at once, others are waited for.
  bool well = false;
  while (true) {
    well = Probe(/*wait=*/!well);
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&probe_soon_),
                            well ? options_.interval : options_.retry);
    if (stopping_) return;
    probe_soon_ = false;
  }
}

bool WorkerProber::Probe(bool wait) {
  const absl::Time deadline = absl::Now() + options_.timeout;
  absl::StatusOr<ProbeAnswer> answer =
      client_->Probe(absl::ToChronoTime(deadline), wait);
  if (!answer.ok()) {
    pool_->OnProbeFailed(worker_, answer.status());
    return false;
  }
  pool_->OnProbe(worker_, answer->info, answer->load);
  return true;
}

}  // namespace baton
