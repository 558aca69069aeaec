#include "server/router/worker_prober.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"

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
  }
  client_->CancelQuestions();
  thread_.join();
}

void WorkerProber::ProbeSoon() {
  absl::MutexLock lock(&mutex_);
  probe_soon_ = true;
}

void WorkerProber::Run() {
  while (true) {
    const absl::Status why = Follow();
    pool_->OnProbeFailed(worker_, why);
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &WorkerProber::IsCalled),
                            options_.retry);
    if (stopping_) return;
    probe_soon_ = false;
  }
}

absl::Status WorkerProber::Follow() {
  const auto on_end = [this](const absl::Status& status) {
    OnStreamEnd(status);
  };
  HealthStream health([this](auto* message) { OnHealth(*message); }, on_end);
  LoadStream load([this](auto* message) { OnLoad(message); }, on_end);
  {
    absl::MutexLock lock(&mutex_);
    told_ = Told();
    told_.num_open = 2;
  }
  client_->StartWatchHealth(&health);
  client_->StartWatchLoad(&load);
  absl::Status why = AwaitFirst();
  while (why.ok()) {
    why = Introduce();
    if (why.ok()) why = AwaitLoss();
  }
  health.Cancel();
  load.Cancel();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &WorkerProber::HasNoStream));
  return why;
}

absl::Status WorkerProber::AwaitFirst() {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &WorkerProber::HasFirst),
                          options_.timeout);
  if (IsLost()) return WhyLost();
  return HasFirst() ? absl::OkStatus()
                    : absl::DeadlineExceededError("does not answer");
}

absl::Status WorkerProber::Introduce() {
  ASSIGN_OR_RETURN(
      const v1::GetWorkerInfoResponse info,
      client_->GetInfo(absl::ToChronoTime(absl::Now() + options_.timeout)));
  absl::MutexLock lock(&mutex_);
  if (IsLost()) return WhyLost();
  told_.known = true;
  pool_->OnProbe(worker_, info, *told_.load);
  return absl::OkStatus();
}

absl::Status WorkerProber::AwaitLoss() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const absl::Duration left =
        told_.last_load + options_.max_silence - clock_.Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("tells no load");
    }
    mutex_.AwaitWithTimeout(
        absl::Condition(this, &WorkerProber::IsLostOrCalled), left);
    if (IsLost()) return WhyLost();
    if (std::exchange(probe_soon_, false)) return absl::OkStatus();
  }
}

void WorkerProber::OnHealth(
    const grpc::health::v1::HealthCheckResponse& health) {
  absl::MutexLock lock(&mutex_);
  told_.serves =
      health.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  if (!told_.serves && told_.end.ok()) {
    told_.end = absl::UnavailableError("not serving");
  }
}

void WorkerProber::OnLoad(v1::GetLoadResponse* load) {
  absl::MutexLock lock(&mutex_);
  told_.last_load = clock_.Now();
  told_.load = std::move(*load);
  if (told_.known) pool_->OnLoad(worker_, *told_.load);
}

void WorkerProber::OnStreamEnd(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  --told_.num_open;
  if (!told_.end.ok()) return;
  told_.end = status.ok() ? absl::UnavailableError("ended its stream") : status;
}

bool WorkerProber::IsLost() const { return stopping_ || !told_.end.ok(); }

bool WorkerProber::HasFirst() const {
  return IsLost() || (told_.serves && told_.load.has_value());
}

bool WorkerProber::IsCalled() const { return stopping_ || probe_soon_; }

bool WorkerProber::IsLostOrCalled() const { return IsLost() || IsCalled(); }

bool WorkerProber::HasNoStream() const { return told_.num_open == 0; }

absl::Status WorkerProber::WhyLost() const {
  return told_.end.ok() ? absl::CancelledError() : told_.end;
}

}  // namespace baton
