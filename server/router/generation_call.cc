#include "server/router/generation_call.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/edge/request_gate.h"

namespace baton {
namespace {

// gRPC's timer may be this early.
constexpr std::chrono::milliseconds kDeadlineSlack(5);

Generation::Options MachineOptions(const Router& router, absl::Time arrival) {
  return {.router_nonce = router.nonce(),
          .max_retries = router.options().max_retries,
          .worker_wait = router.options().worker_wait,
          .arrival = arrival,
          .tokenizer = router.text().tokenizer.get()};
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
      generation_(std::move(plan), MachineOptions(router_, options.arrival)),
      last_tokens_(num_samples_, absl::InfinitePast()),
      inter_token_latency_(LatencyBuckets()) {
  router_.OnCallMade();
}

GenerationCall::~GenerationCall() { router_.OnCallDeleted(); }

void GenerationCall::Start() {
  Handle([](Generation& generation, absl::Time) {
    return generation.OnArrived();
  });
}

void GenerationCall::OnEarlyEnd(EarlyEnd why) {
  absl::Status status = absl::CancelledError("the client is gone");
  if (why == EarlyEnd::kCut) {
    status = DrainingError();
  } else if (std::chrono::system_clock::now() + kDeadlineSlack >= deadline_) {
    status = absl::DeadlineExceededError("the deadline has passed");
  }
  Handle([&status](Generation& generation, absl::Time now) {
    return generation.OnEarlyEnd(status, now);
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
  if (actions.end_prefill) attempts_.back()->prefill->Cancel();
  if (actions.end_decode) attempts_.back()->decode->Cancel();
  if (actions.suspect.has_value()) router_.OnSuspect(*actions.suspect);
  if (actions.queue) EnterQueue();
  if (!actions.retry_reason.empty()) LogRetry(actions.retry_reason);
  if (actions.find_route) FindRoute();
  if (actions.pause > absl::ZeroDuration()) {
    StartTimer(actions.pause, [](Generation& generation, absl::Time) {
      return generation.OnPauseEnded();
    });
  }
  if (actions.start_prefill) StartPrefill();
  if (actions.start_decode) StartDecode();
  if (actions.abort_sample.has_value()) StartAbort(*actions.abort_sample);
  if (actions.start_grace) {
    StartTimer(router_.options().release_grace,
               [number = attempts_.back()->number](Generation& generation,
                                                   absl::Time now) {
                 return generation.OnGraceEnded(number, now);
               });
  }
  if (actions.send) SendResponses();
  if (actions.finish) Finish();
}

void GenerationCall::EnterQueue() {
  const absl::Status entered = router_.admission().Enter(
      ticket_, client_request_id_, [self = shared_from_this()] {
        self->Handle([](Generation& generation, absl::Time now) {
          return generation.OnAdmitted(now);
        });
      });
  in_queue_ = entered.ok();
  if (in_queue_) return;
  Handle([&entered](Generation& generation, absl::Time now) {
    return generation.OnRefused(entered, now);
  });
}

void GenerationCall::FindRoute() {
  if (!attempts_.empty()) ReleaseUnstarted();
  RouteNeeds needs;
  auto attempt = std::make_unique<Attempt>();
  {
    absl::MutexLock lock(&mutex_);
    needs = {.avoid = generation_.avoid(), .worst = generation_.worst_route()};
    attempt->number = generation_.attempt();
  }
  absl::StatusOr<Route> route = router_.pool().FindRoute(needs);
  if (!route.ok()) {
    Handle([&route](Generation& generation, absl::Time now) {
      return generation.OnRefused(route.status(), now);
    });
    return;
  }
  attempt->route = *route;
  const uint64_t counter =
      attempts_.empty() ? ticket_.value() : router_.NextCounter();
  attempts_.push_back(std::move(attempt));
  Handle([&route, counter](Generation& generation, absl::Time) {
    return generation.OnRoute(*std::move(route), counter);
  });
}

void GenerationCall::StartPrefill() {
  Attempt* const attempt = attempts_.back().get();
  v1::PrefillRequest request;
  {
    absl::MutexLock lock(&mutex_);
    request = generation_.MakePrefillRequest();
  }
  attempt->prefill = std::make_unique<PrefillStream>(
      [self = shared_from_this(), attempt](v1::PrefillResponse* message) {
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnPrefillMessage(attempt->number, message, now);
        });
      },
      [self = shared_from_this(), attempt](const absl::Status& status) {
        self->router_.pool().OnRequestEnded(
            *attempt->route.prefill, attempt->route.prefill_rank, std::nullopt);
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnPrefillEnd(attempt->number, status, now);
        });
      });
  router_.client(*attempt->route.prefill)
      .StartPrefill(request, deadline_, attempt->prefill.get());
}

void GenerationCall::StartDecode() {
  Attempt* const attempt = attempts_.back().get();
  v1::DecodeRequest request;
  {
    absl::MutexLock lock(&mutex_);
    request = generation_.MakeDecodeRequest();
  }
  attempt->decode = std::make_unique<DecodeStream>(
      [self = shared_from_this(), attempt](v1::DecodeResponse* message) {
        if (message->has_finished()) {
          self->OnSampleFinished(attempt, message->finished());
        }
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnDecodeMessage(attempt->number, *message, now);
        });
      },
      [self = shared_from_this(), attempt](const absl::Status& status) {
        self->TellEnded(attempt);
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnDecodeEnd(attempt->number, status, now);
        });
      });
  router_.client(attempt->route.decode)
      .StartDecode(request, deadline_, attempt->decode.get());
}

void GenerationCall::StartAbort(uint32_t sample_index) {
  v1::AbortRequest request;
  request.mutable_id()->set_router_nonce(router_.nonce());
  request.set_sample_index(sample_index);
  {
    absl::MutexLock lock(&mutex_);
    request.mutable_id()->set_counter(generation_.id_counter());
  }
  router_.client(attempts_.back()->route.decode).StartAbort(request);
}

void GenerationCall::OnSampleFinished(Attempt* attempt,
                                      const v1::DecodeFinished& finished) {
  if (finished.has_load()) attempt->load = finished.load();
  if (++attempt->num_finished == num_samples_) TellEnded(attempt);
}

void GenerationCall::TellEnded(Attempt* attempt) {
  if (std::exchange(attempt->decode_ended, true)) return;
  router_.pool().OnRequestEnded(attempt->route.decode,
                                attempt->route.decode_rank, attempt->load);
}

template <typename Event>
void GenerationCall::StartTimer(absl::Duration duration, Event event) {
  timer_.emplace();
  // The alarm keeps its callback as long as we keep the alarm: let go of `self`
  // in the call.
  timer_->Set(
      std::chrono::system_clock::now() + absl::ToChronoNanoseconds(duration),
      [self = shared_from_this(), event](bool expired) mutable {
        const auto last = std::move(self);
        if (expired) last->Handle(event);
      });
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

void GenerationCall::ObserveTokens(const v1::GenerateChunk& chunk) {
  if (chunk.token_ids_size() == 0) return;
  const absl::Time now = router_.clock().Now();
  if (!std::exchange(has_token_, true)) {
    router_.metrics().time_to_first_token.Observe(
        absl::ToDoubleSeconds(now - arrival_));
  }
  absl::Time& last = last_tokens_[chunk.sample_index()];
  int num_intervals = chunk.token_ids_size();
  if (last == absl::InfinitePast()) {
    last = now;
    --num_intervals;
  }
  if (num_intervals == 0) return;
  const double each = absl::ToDoubleSeconds(now - last) / num_intervals;
  for (int i = 0; i < num_intervals; ++i) inter_token_latency_.Observe(each);
  last = now;
}

void GenerationCall::Finish() {
  absl::Status status;
  v1::GenerateFinished summary;
  {
    absl::MutexLock lock(&mutex_);
    status = generation_.status();
    summary = generation_.summary();
  }
  if (!attempts_.empty()) ReleaseUnstarted();
  timer_.reset();
  LogAndCount(summary, status);
  // Before the client hears of the end: its id is free by then.
  if (in_queue_) router_.admission().Leave(ticket_);
  client_->End(std::move(status));
}

void GenerationCall::ReleaseUnstarted() {
  Attempt& attempt = *attempts_.back();
  // A retry that finds no workers leaves it the current one until the end.
  if (std::exchange(attempt.released, true)) return;
  if (attempt.route.prefill.has_value() && attempt.prefill == nullptr) {
    router_.pool().OnRequestEnded(*attempt.route.prefill,
                                  attempt.route.prefill_rank, std::nullopt);
  }
  if (attempt.decode == nullptr) {
    router_.pool().OnRequestEnded(attempt.route.decode,
                                  attempt.route.decode_rank, std::nullopt);
  }
}

void GenerationCall::LogRetry(std::string_view reason) const {
  router_.metrics().CountRetry(reason);
  LOG(WARNING) << "request " << Name() << " retry reason " << reason
               << AttemptForLog();
}

void GenerationCall::LogAndCount(const v1::GenerateFinished& summary,
                                 const absl::Status& status) {
  RouterMetrics& metrics = router_.metrics();
  const v1::Usage& usage = summary.usage();
  const v1::Timing& timing = summary.timing();
  metrics.CountRequest(status.code());
  metrics.prompt_tokens.Increment(usage.prompt_tokens());
  metrics.cached_tokens.Increment(usage.cached_tokens());
  metrics.generated_tokens.Increment(usage.completion_tokens());
  metrics.queue_time.Observe(timing.queue_seconds());
  inter_token_latency_.FlushTo(&metrics.inter_token_latency);
  LOG(INFO) << "request " << Name() << " outcome " << OutcomeName(status.code())
            << " reason " << ReasonForLog(status) << " samples " << num_samples_
            << " prompt " << usage.prompt_tokens() << " cached "
            << usage.cached_tokens() << " output " << usage.completion_tokens()
            << " queue " << timing.queue_seconds() << " prefill "
            << timing.prefill_seconds() << " transfer "
            << timing.kv_transfer_seconds() << " transfer_bytes "
            << timing.kv_transfer_bytes() << " ttft " << timing.ttft_seconds()
            << " total " << timing.total_seconds() << AttemptForLog();
}

std::string GenerationCall::ReasonForLog(const absl::Status& status) const {
  if (!status.ok()) return std::string(status.message());
  std::string text;
  for (const v1::FinishReason reason : reasons_) {
    absl::StrAppend(&text, text.empty() ? "" : ",",
                    v1::FinishReason_Name(reason));
  }
  return text;
}

std::string GenerationCall::Name() const {
  std::string name =
      absl::StrCat(absl::Hex(router_.nonce()), "-", ticket_.value());
  if (!client_request_id_.empty()) {
    // Of the client's making: nothing in it may look like a line of ours.
    absl::StrAppend(&name, " client_id \"",
                    absl::CHexEscape(client_request_id_), "\"");
  }
  return name;
}

std::string GenerationCall::AttemptForLog() const {
  if (attempts_.empty()) return " attempts 0";
  const Route& route = attempts_.back()->route;
  return absl::StrCat(
      " attempts ", attempts_.size(), " prefill ",
      route.prefill.has_value() ? router_.pool().address(*route.prefill) : "-",
      " decode ", router_.pool().address(route.decode));
}

}  // namespace baton
