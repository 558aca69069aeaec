#include "server/router/generation_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"
#include "server/edge/request_gate.h"
#include "server/edge/stream_budget.h"
#include "server/router/prefix_table.h"

namespace baton {
namespace {

// gRPC's timer may be this early.
constexpr std::chrono::milliseconds kDeadlineSlack(5);
// What a worker's calls end before the client's deadline, but at most so small
// a part of what is left.
constexpr std::chrono::milliseconds kWorkerMargin(10);
constexpr int kWorkerMarginShare = 10;

bool HasPassed(std::chrono::system_clock::time_point deadline) {
  return std::chrono::system_clock::now() + kDeadlineSlack >= deadline;
}

// A worker's end as it must be taken: at the deadline it may say that it was
// cancelled.
absl::Status EndAtWorker(const absl::Status& status,
                         std::chrono::system_clock::time_point deadline) {
  if (!absl::IsCancelled(status) || !HasPassed(deadline - kWorkerMargin)) {
    return status;
  }
  return absl::DeadlineExceededError("the deadline has passed");
}

absl::Status DeadlinePassed(const v1::Usage& usage) {
  return absl::DeadlineExceededError(absl::StrCat(
      "the deadline has passed; prompt_tokens ", usage.prompt_tokens(),
      " completion_tokens ", usage.completion_tokens()));
}

Generation::Options MachineOptions(const Router& router, absl::Time arrival) {
  return {.router_nonce = router.nonce(),
          .max_retries = router.options().max_retries,
          .worker_wait = router.options().worker_wait,
          .arrival = arrival,
          .tokenizer = router.text().tokenizer.get()};
}

// None: it is to be computed anew, and nobody is to find it later.
std::vector<PrefixKey> AffinityKeys(const GenerationPlan& plan) {
  if (plan.bypass_cache) return {};
  return PrefixKeysOf(plan.prompt_ids, plan.cache_salt);
}

// Null: it has not begun, and never will.
template <typename Response>
void Cancel(WorkerStream<Response>* stream) {
  if (stream != nullptr) stream->Cancel();
}

}  // namespace

GenerationCall::GenerationCall(GenerationPlan plan, Options options)
    : router_(*options.router),
      client_(options.client),
      deadline_(options.deadline),
      arrival_(options.arrival),
      ticket_(router_.NextCounter()),
      client_request_id_(plan.client_request_id),
      num_samples_(plan.num_samples),
      num_prompt_tokens_(static_cast<uint32_t>(plan.prompt_ids.size())),
      prefix_keys_(AffinityKeys(plan)),
      generation_(std::move(plan), MachineOptions(router_, options.arrival)),
      last_tokens_(num_samples_, absl::InfinitePast()),
      inter_token_latency_(LatencyBuckets()) {
  router_.OnCallMade();
}

GenerationCall::~GenerationCall() {
  calls_.clear();  // They use workers of the router's.
  router_.OnCallDeleted();
}

void GenerationCall::Start() {
  Handle([](Generation& generation, absl::Time) {
    return generation.OnArrived();
  });
}

absl::Status GenerationCall::StatusOf(
    EarlyEnd why, std::chrono::system_clock::time_point deadline) {
  if (why == EarlyEnd::kCut) return DrainingError();
  if (why == EarlyEnd::kSlowReader) {
    return WithReason(absl::AbortedError("the client reads too slowly"),
                      kSlowReaderReason);
  }
  if (HasPassed(deadline)) {
    return absl::DeadlineExceededError("the deadline has passed");
  }
  return absl::CancelledError("the client is gone");
}

void GenerationCall::OnEarlyEnd(EarlyEnd why) {
  const absl::Status status = StatusOf(why, deadline_);
  Handle([&status](Generation& generation, absl::Time now) {
    return generation.OnEarlyEnd(status, now);
  });
}

// Actions are carried out in their order, so the newest pace is the last one.
void GenerationCall::OnFlow(bool paused) {
  client_paused_.store(paused);
  Handle([](Generation&, absl::Time) {
    GenerationActions actions;
    actions.flow = true;
    return actions;
  });
}

template <typename Event>
void GenerationCall::Handle(Event&& event) {
  GenerationActions actions;
  {
    absl::MutexLock lock(&mutex_);
    actions = event(generation_, router_.clock().Now());
    if (actions == GenerationActions()) return;
    if (performing_) {
      pending_.push_back(actions);
      return;
    }
    performing_ = true;
  }
  while (true) {
    Perform(actions);
    absl::MutexLock lock(&mutex_);
    if (pending_.empty()) {
      performing_ = false;
      return;
    }
    actions = pending_.front();
    pending_.pop_front();
  }
}

void GenerationCall::Perform(const GenerationActions& actions) {
  for (uint32_t attempt : actions.end_prefill) {
    Cancel(calls_[attempt]->prefill.get());
  }
  for (uint32_t attempt : actions.end_decode) {
    Cancel(calls_[attempt]->decode.get());
  }
  if (actions.suspect.has_value()) router_.OnSuspect(*actions.suspect);
  if (actions.queue) EnterQueue();
  if (!actions.find_route.empty()) ReleaseUnstarted();
  for (uint32_t attempt : actions.find_route) {
    if (!FindRoute(attempt, actions.retry_reason)) break;
  }
  if (actions.pause.has_value()) {
    StartTimer(
        calls_[actions.pause->attempt].get(), actions.pause->duration,
        [number = actions.pause->attempt](Generation& generation, absl::Time) {
          return generation.OnPauseEnded(number);
        });
  }
  if (actions.start_prefill.has_value()) {
    StartPrefill(calls_[*actions.start_prefill].get());
  }
  if (actions.start_decode.has_value()) {
    StartDecode(calls_[*actions.start_decode].get());
  }
  if (actions.abort.has_value()) {
    StartAbort(*calls_[actions.abort->attempt], actions.abort->sample_index);
  }
  if (actions.start_grace.has_value()) {
    StartTimer(calls_[*actions.start_grace].get(),
               router_.options().release_grace,
               [number = *actions.start_grace](Generation& generation,
                                               absl::Time now) {
                 return generation.OnGraceEnded(number, now);
               });
  }
  if (actions.flow) FollowClient(client_paused_.load());
  if (actions.send) SendResponses();
  if (actions.finish) Finish();
}

void GenerationCall::EnterQueue() {
  absl::Status entered = CheckDeadline(router_.admission().num_waiting());
  if (entered.ok()) {
    entered = router_.admission().Enter(
        ticket_, client_request_id_,
        [self = shared_from_this()] { self->OnTurn(); },
        [self = shared_from_this()](const absl::Status& status) {
          self->Handle([&status](Generation& generation, absl::Time now) {
            return generation.OnEarlyEnd(status, now);
          });
        });
    in_queue_ = entered.ok();
  }
  if (in_queue_) return;
  Handle([&entered](Generation& generation, absl::Time now) {
    return generation.OnRefused(entered, now);
  });
}

void GenerationCall::OnTurn() {
  turn_ = router_.clock().Now();
  const absl::Status in_time = CheckDeadline(0);
  Handle([&in_time](Generation& generation, absl::Time now) {
    return in_time.ok() ? generation.OnAdmitted(now)
                        : generation.OnEarlyEnd(in_time, now);
  });
}

absl::Status GenerationCall::CheckDeadline(uint32_t num_ahead) const {
  if (deadline_ == std::chrono::system_clock::time_point::max()) {
    return absl::OkStatus();
  }
  const ServiceTimes& times = router_.service_times();
  const absl::Time now = router_.clock().Now();
  const absl::Status status = CheckTimeLeft(
      absl::FromChrono(deadline_ - std::chrono::system_clock::now()),
      times.LeastQueueTime(
          num_ahead, router_.options().admission.max_concurrent_requests, now),
      times.LeastPrefillTime(num_prompt_tokens_, now));
  if (const auto reason = ErrorReason(status); reason.has_value()) {
    router_.metrics().CountDeadlineRefusal(*reason);
  }
  return status;
}

std::chrono::system_clock::time_point GenerationCall::WorkerDeadline() const {
  if (deadline_ == std::chrono::system_clock::time_point::max()) {
    return deadline_;
  }
  const auto left = deadline_ - std::chrono::system_clock::now();
  return deadline_ - std::min<std::chrono::system_clock::duration>(
                         kWorkerMargin, left / kWorkerMarginShare);
}

bool GenerationCall::FindRoute(uint32_t attempt,
                               std::string_view retry_reason) {
  if (calls_.empty()) {
    router_.retry_budget().OnBegan(num_samples_, router_.clock().Now());
  }
  if (attempt == calls_.size()) {
    calls_.push_back(std::make_unique<Calls>(attempt));
  }
  RouteNeeds needs;
  {
    absl::MutexLock lock(&mutex_);
    needs = generation_.NeedsOf(attempt);
  }
  needs.prefix = prefix_keys_;
  absl::StatusOr<Route> route = router_.pool().FindRoute(needs);
  const bool is_retry = needs.IsRetry(retry_reason, route.ok());
  if (!route.ok()) {
    if (is_retry && !TakeRetry(attempt, retry_reason)) return false;
    Handle([&route, attempt](Generation& generation, absl::Time now) {
      return generation.OnNoRoute(attempt, route.status(), now);
    });
    return true;
  }
  Calls& calls = *calls_[attempt];
  calls.route = *route;
  calls.reports.Make(&router_.pool(), *route, WorkerDeadline());
  // Its log names the workers of the one before.
  if (is_retry && !TakeRetry(attempt, retry_reason)) return false;
  if (route->prefill.has_value()) {
    calls.prefill_worker.emplace(router_.Use(*route->prefill));
  }
  calls.decode_worker.emplace(router_.Use(route->decode));
  calls.id_counter = attempt == 0 ? ticket_.value() : router_.NextCounter();
  Handle([&route, &calls](Generation& generation, absl::Time) {
    return generation.OnRoute(calls.number, *std::move(route),
                              calls.id_counter);
  });
  return true;
}

void GenerationCall::StartPrefill(Calls* calls) {
  v1::PrefillRequest request;
  {
    absl::MutexLock lock(&mutex_);
    // Since then another attempt may have ended all of them.
    if (generation_.attempt(calls->number).over()) return;
    request = generation_.MakePrefillRequest(calls->number);
  }
  calls->prefill = std::make_unique<PrefillStream>(
      [self = shared_from_this(), calls](v1::PrefillResponse* message) {
        if (message->has_first_tokens() || message->has_released()) {
          calls->reports.prefill->OnAnswered();
        }
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnPrefillMessage(calls->number, message, now);
        });
      },
      [self = shared_from_this(), calls](const absl::Status& status) {
        calls->reports.prefill->OnEnded(status);
        self->router_.pool().OnRequestEnded(
            *calls->route->prefill, calls->route->prefill_rank, std::nullopt);
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnPrefillEnd(
              calls->number, EndAtWorker(status, self->deadline_), now);
        });
      });
  calls->prefill->SetPaused(client_paused_.load());
  calls->prefill_worker->client().StartPrefill(request, WorkerDeadline(),
                                               calls->prefill.get());
}

void GenerationCall::StartDecode(Calls* calls) {
  v1::DecodeRequest request;
  {
    absl::MutexLock lock(&mutex_);
    if (generation_.attempt(calls->number).over()) return;
    request = generation_.MakeDecodeRequest(calls->number);
    calls->num_unfinished = generation_.attempt(calls->number).goal.num_samples;
  }
  calls->decode = std::make_unique<DecodeStream>(
      [self = shared_from_this(), calls](v1::DecodeResponse* message) {
        calls->reports.decode->OnAnswered();
        if (message->has_finished()) {
          self->OnSampleFinished(calls, message->finished());
        }
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnDecodeMessage(calls->number, *message, now);
        });
      },
      [self = shared_from_this(), calls](const absl::Status& status) {
        calls->reports.decode->OnEnded(status);
        self->TellEnded(calls);
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnDecodeEnd(
              calls->number, EndAtWorker(status, self->deadline_), now);
        });
      });
  calls->decode->SetPaused(client_paused_.load());
  calls->decode_worker->client().StartDecode(request, WorkerDeadline(),
                                             calls->decode.get());
}

void GenerationCall::StartAbort(const Calls& calls, uint32_t sample_index) {
  v1::AbortRequest request;
  request.mutable_id()->set_router_nonce(router_.nonce());
  request.mutable_id()->set_counter(calls.id_counter);
  request.set_sample_index(sample_index);
  calls.decode_worker->client().StartAbort(request);
}

void GenerationCall::OnSampleFinished(Calls* calls,
                                      const v1::DecodeFinished& finished) {
  if (finished.has_load()) calls->load = finished.load();
  if (--calls->num_unfinished == 0) TellEnded(calls);
}

void GenerationCall::TellEnded(Calls* calls) {
  if (std::exchange(calls->decode_ended, true)) return;
  router_.pool().OnRequestEnded(calls->route->decode, calls->route->decode_rank,
                                calls->load);
}

template <typename Event>
void GenerationCall::StartTimer(Calls* calls, absl::Duration duration,
                                Event event) {
  calls->timer.emplace();
  // The alarm keeps its callback as long as we keep the alarm: let go of `self`
  // in the call.
  calls->timer->Set(
      std::chrono::system_clock::now() + absl::ToChronoNanoseconds(duration),
      [self = shared_from_this(), event](bool expired) mutable {
        const auto last = std::move(self);
        if (expired) last->Handle(event);
      });
}

void GenerationCall::FollowClient(bool paused) {
  if (finished_) return;
  was_paused_ |= paused;
  for (const auto& calls : calls_) {
    if (calls->prefill != nullptr) calls->prefill->SetPaused(paused);
    if (calls->decode != nullptr) calls->decode->SetPaused(paused);
  }
  if (in_queue_) router_.admission().SetPaused(ticket_, paused);
}

void GenerationCall::SendResponses() {
  std::vector<v1::GenerateResponse> responses;
  {
    absl::MutexLock lock(&mutex_);
    // None, where an earlier action's sending has taken all there was.
    responses = generation_.TakeResponses();
  }
  for (v1::GenerateResponse& response : responses) {
    if (response.has_chunk()) ObserveTokens(response.chunk());
    if (response.has_finished()) {
      reasons_.insert(response.finished().finish_reason());
    }
    client_->Send(std::move(response));
  }
}

void GenerationCall::Finish() {
  absl::Status status;
  v1::GenerateFinished summary;
  {
    absl::MutexLock lock(&mutex_);
    status = generation_.status();
    summary = generation_.summary();
  }
  FollowClient(false);  // Calls that are over hear of their ends.
  finished_ = true;
  ReleaseUnstarted();
  for (const auto& calls : calls_) calls->timer.reset();
  if (!calls_.empty()) router_.retry_budget().OnEnded(num_samples_);
  if (absl::IsDeadlineExceeded(status) && !ErrorReason(status).has_value()) {
    status = DeadlinePassed(summary.usage());
  }
  if (status.ok()) ObserveTimes(summary);
  LogAndCount(summary, status);
  // Before the client hears of the end: its id is free by then.
  if (in_queue_) router_.admission().Leave(ticket_);
  client_->End(std::move(status));
}

void GenerationCall::ReleaseUnstarted() {
  std::vector<bool> is_over;
  {
    absl::MutexLock lock(&mutex_);
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      is_over.push_back(generation_.attempt(i).over());
    }
  }
  WorkerPool& pool = router_.pool();
  for (const auto& calls : calls_) {
    if (!is_over[calls->number] || !calls->route.has_value()) continue;
    if (std::exchange(calls->released, true)) continue;
    const Route& route = *calls->route;
    if (route.prefill.has_value() && calls->prefill == nullptr) {
      calls->reports.prefill->OnNeverBegan();
      pool.OnRequestEnded(*route.prefill, route.prefill_rank, std::nullopt);
    }
    if (calls->decode == nullptr) {
      calls->reports.decode->OnNeverBegan();
      pool.OnRequestEnded(route.decode, route.decode_rank, std::nullopt);
    }
  }
}

bool GenerationCall::TakeRetry(uint32_t attempt, std::string_view reason) {
  AttemptGoal goal;
  uint32_t num_tokens = 0;
  bool resumes = false;  // The request, if not this sample of it.
  {
    absl::MutexLock lock(&mutex_);
    goal = generation_.attempt(attempt).goal;
    resumes = generation_.num_tokens() > 0;
    num_tokens = static_cast<uint32_t>(generation_.plan().prompt_ids.size()) +
                 goal.num_resumed;
  }
  RouterMetrics& metrics = router_.metrics();
  if (goal.cause != AttemptCause::kHandedBack) {
    const absl::Status taken = router_.TakeRetry(resumes);
    if (!taken.ok()) {
      Handle([&](Generation& generation, absl::Time now) {
        return generation.OnRetryRefused(attempt, taken, now);
      });
      return false;
    }
  }
  metrics.CountRetry(reason);
  if (goal.num_resumed > 0) metrics.CountResume(reason, num_tokens);
  LOG(WARNING) << "request " << Name() << " attempt " << attempt << " reason "
               << reason << " resumed " << goal.num_resumed << AttemptsForLog();
  return true;
}

}  // namespace baton
