#include "tests/simulation/system/simulated_router.h"

#include "base/logging.h"
#include "server/edge/grpc_status.h"
#include "server/router/routing_policy.h"
#include "tests/simulation/system/router_call.h"

namespace baton {

struct SimulatedRouter::Process {
  Process(uint64_t its_nonce, const Options& options,
          WorkerPool::Options its_pool, EventLoop* loop)
      : nonce(its_nonce),
        admission(options.admission),
        retry_budget(options.retry_budget),
        pool(std::move(its_pool)),
        streams(std::make_shared<ProcessStreams>(options.streams, loop)) {}
  const uint64_t nonce;
  uint64_t counter = 0;
  Admission admission;
  RetryBudget retry_budget;
  WorkerPool pool;
  const std::shared_ptr<ProcessStreams> streams;  // See ServerStream.
  std::vector<Prober> probers;
  // Shared with whatever may bring it an event.
  std::vector<std::shared_ptr<RouterCall>> calls;
};

SimulatedRouter::SimulatedRouter(const Options& options, EventLoop* loop,
                                 CallNetwork* calls,
                                 std::vector<SimulatedWorker*> workers)
    : options_(options),
      loop_(loop),
      calls_(calls),
      workers_(std::move(workers)) {}

SimulatedRouter::~SimulatedRouter() = default;

uint64_t SimulatedRouter::nonce() const { return process_->nonce; }
uint64_t SimulatedRouter::NextCounter() { return ++process_->counter; }
Admission& SimulatedRouter::admission() { return process_->admission; }
WorkerPool& SimulatedRouter::pool() { return process_->pool; }
RetryBudget& SimulatedRouter::retry_budget() { return process_->retry_budget; }
const std::shared_ptr<ProcessStreams>& SimulatedRouter::streams() {
  return process_->streams;
}

void SimulatedRouter::Start() {
  CHECK(!is_up());
  loop_->Note("start router", id().value(), ++num_incarnations_);
  WorkerPool::Options pool;
  for (const SimulatedWorker* worker : workers_) {
    pool.workers.push_back(
        {std::to_string(worker->id().value()), worker->role()});
  }
  pool.vocab_size = options_.vocab_size;
  pool.make_policy = [this](v1::WorkerRole) {
    return MakeRoutingPolicy(options_.policy, {.seed = loop_->dice().Bits()});
  };
  pool.ejection = options_.ejection;
  pool.clock = &loop_->clock();
  process_ = std::make_unique<Process>(loop_->dice().Bits(), options_,
                                       std::move(pool), loop_);
  process_->probers.resize(workers_.size());
  calls_->SetListening(id(), true);
  for (uint32_t i = 0; i < workers_.size(); ++i) Probe(WorkerId(i));
}

void SimulatedRouter::Crash() {
  loop_->Note("crash router", id().value());
  calls_->OnDied(id(), true);
  for (const Prober& prober : process_->probers) loop_->Cancel(prober.next);
  for (const auto& call : process_->calls) call->OnCrash();
  process_->streams->Stop();
  process_.reset();
}

void SimulatedRouter::StopProbing() {
  probes_ = false;
  for (const Prober& prober : process_->probers) loop_->Cancel(prober.next);
}

void SimulatedRouter::Accept(GenerationPlan plan,
                             StreamStart<v1::GenerateResponse> client) {
  const auto call = std::make_shared<RouterCall>(
      std::move(plan), this, NextCounter(), std::move(client));
  process_->calls.push_back(call);
  call->Start();
}

void SimulatedRouter::AbortAtWorker(WorkerId id,
                                    const v1::AbortRequest& request) {
  SimulatedWorker* const worker = workers_[id.value()];
  calls_->Begin(
      options_.id, worker->id(),
      [worker, request](SimulatedCall* call) {
        call->Serve({.on_write_done = [](bool) {}, .on_cancel = [] {}});
        worker->Abort(request);
        call->Finish(absl::OkStatus());
      },
      absl::InfiniteFuture(), [](const absl::Status&) {});
}

void SimulatedRouter::OnSuspect(WorkerId worker) {
  pool().OnSuspect(worker);
  ProbeAfter(worker, absl::ZeroDuration());
}

absl::Status SimulatedRouter::TakeRetry(std::string_view reason,
                                        AttemptCause cause, bool resumes) {
  loop_->Note("retry", id().value(), reason.size());
  retry_reasons_.emplace(reason);
  if (cause == AttemptCause::kHandedBack) return absl::OkStatus();
  RetryBudget& budget = process_->retry_budget;
  if (resumes ? budget.TakeResume(loop_->now())
              : budget.TakeRetry(loop_->now())) {
    return absl::OkStatus();
  }
  retry_reasons_.emplace("REFUSED");
  return WithReason(absl::UnavailableError("too many are tried again"),
                    "RETRY_BUDGET");
}

size_t SimulatedRouter::CollectCalls() {
  if (!is_up()) return 0;
  std::erase_if(process_->calls,
                [](const auto& call) { return call->is_over(); });
  return process_->calls.size();
}

void SimulatedRouter::ProbeAfter(WorkerId worker, absl::Duration delay) {
  Prober& prober = process_->probers[worker.value()];
  prober.is_due = delay == absl::ZeroDuration();
  if (prober.waits_for_answer || !probes_) return;
  loop_->Cancel(prober.next);
  prober.next = loop_->After(delay, [this, worker] { Probe(worker); });
}

void SimulatedRouter::Probe(WorkerId id) {
  Prober& prober = process_->probers[id.value()];
  prober.waits_for_answer = true;
  prober.is_due = false;
  SimulatedWorker* const worker = workers_[id.value()];
  // Of this call: shared by its two ends.
  const auto answer =
      std::make_shared<std::optional<SimulatedWorker::ProbeAnswer>>();
  calls_->Begin(
      options_.id, worker->id(),
      [worker, answer](SimulatedCall* call) {
        call->Serve(
            {.on_write_done = [](bool) {},
             .on_cancel = [call] { call->Finish(absl::CancelledError("")); }});
        if (worker->stands_still()) return;
        absl::StatusOr<SimulatedWorker::ProbeAnswer> said = worker->Probe();
        if (said.ok()) *answer = *said;
        call->Finish(said.status());
      },
      loop_->now() + options_.probe_timeout,
      [this, id, answer](const absl::Status& status) {
        OnProbeEnd(id, status, *answer);
      });
}

void SimulatedRouter::OnProbeEnd(
    WorkerId worker, const absl::Status& status,
    const std::optional<SimulatedWorker::ProbeAnswer>& answer) {
  Prober& prober = process_->probers[worker.value()];
  prober.waits_for_answer = false;
  absl::Duration pause =
      status.ok() ? options_.probe_interval : options_.probe_retry;
  if (prober.is_due) pause = absl::ZeroDuration();
  loop_->Note("probed", worker.value(), static_cast<uint64_t>(status.code()));
  if (status.ok()) {
    pool().OnProbe(worker, answer->info, answer->load);
  } else {
    pool().OnProbeFailed(worker, status);
  }
  ProbeAfter(worker, pause);
}

}  // namespace baton
