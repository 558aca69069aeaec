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

std::optional<v1::GetLoadResponse> LoadOf(const v1::DecodeFinished& finished) {
  if (!finished.has_load()) return std::nullopt;
  return finished.load();
}

}  // namespace

GenerationCall::GenerationCall(GenerationPlan plan, Options options)
    : router_(*options.router),
      client_(options.client),
      deadline_(options.deadline),
      arrival_(options.arrival),
      ticket_(router_.NextCounter()),
      client_request_id_(plan.client_request_id),
      generation_(std::move(plan), MachineOptions(router_, options.arrival)),
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
  if (actions.start_grace) {
    StartTimer(router_.options().release_grace,
               [number = attempts_.back()->number](Generation& generation,
                                                   absl::Time now) {
                 return generation.OnGraceEnded(number, now);
               });
  }
  if (actions.send_prompt_logprobs) SendPromptLogprobs();
  if (actions.send_chunk) SendChunk();
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
  std::vector<WorkerId> avoid;
  RouteRank worst;
  auto attempt = std::make_unique<Attempt>();
  {
    absl::MutexLock lock(&mutex_);
    avoid = generation_.avoid();
    worst = generation_.worst_route();
    attempt->number = generation_.attempt();
  }
  absl::StatusOr<Route> route = router_.pool().FindRoute(avoid, worst);
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
    *request.mutable_request() = generation_.MakeRequest();
  }
  attempt->prefill = std::make_unique<PrefillStream>(
      [self = shared_from_this(), attempt](v1::PrefillResponse* message) {
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnPrefillMessage(attempt->number, message, now);
        });
      },
      [self = shared_from_this(), attempt](const absl::Status& status) {
        self->router_.pool().OnRequestEnded(*attempt->route.prefill,
                                            std::nullopt);
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
    *request.mutable_request() = generation_.MakeRequest();
    if (attempt->route.prefill.has_value()) {
      request.set_kv_handle(generation_.kv_handle());
    }
  }
  attempt->decode = std::make_unique<DecodeStream>(
      [self = shared_from_this(), attempt](v1::DecodeResponse* message) {
        if (message->has_finished()) {
          self->TellEnded(attempt, LoadOf(message->finished()));
        }
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnDecodeMessage(attempt->number, *message, now);
        });
      },
      [self = shared_from_this(), attempt](const absl::Status& status) {
        self->TellEnded(attempt, std::nullopt);
        self->Handle([&](Generation& generation, absl::Time now) {
          return generation.OnDecodeEnd(attempt->number, status, now);
        });
      });
  router_.client(attempt->route.decode)
      .StartDecode(request, deadline_, attempt->decode.get());
}

void GenerationCall::TellEnded(Attempt* attempt,
                               const std::optional<v1::GetLoadResponse>& load) {
  if (std::exchange(attempt->decode_ended, true)) return;
  router_.pool().OnRequestEnded(attempt->route.decode, load);
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

void GenerationCall::SendPromptLogprobs() {
  v1::GenerateResponse response;
  {
    absl::MutexLock lock(&mutex_);
    // An earlier action's sending may have taken all there was.
    if (generation_.prompt_logprobs()->token_ids_size() == 0) return;
    response.mutable_prompt_logprobs()->Swap(generation_.prompt_logprobs());
  }
  client_->Send(std::move(response));
}

void GenerationCall::SendChunk() {
  v1::GenerateResponse response;
  {
    absl::MutexLock lock(&mutex_);
    v1::GenerateChunk* const chunk = generation_.chunk();
    // As above.
    if (chunk->token_ids_size() == 0 && chunk->text().empty()) return;
    response.mutable_chunk()->Swap(chunk);
  }
  ObserveTokens(response.chunk().token_ids_size());
  client_->Send(std::move(response));
}

void GenerationCall::ObserveTokens(int num_tokens) {
  if (num_tokens == 0) return;
  const absl::Time now = router_.clock().Now();
  int num_intervals = num_tokens;
  if (last_tokens_ == absl::InfinitePast()) {
    router_.metrics().time_to_first_token.Observe(
        absl::ToDoubleSeconds(now - arrival_));
    last_tokens_ = now;
    --num_intervals;
  }
  if (num_intervals == 0) return;
  const double each = absl::ToDoubleSeconds(now - last_tokens_) / num_intervals;
  for (int i = 0; i < num_intervals; ++i) inter_token_latency_.Observe(each);
  last_tokens_ = now;
}

void GenerationCall::Finish() {
  absl::Status status;
  v1::GenerateResponse response;
  {
    absl::MutexLock lock(&mutex_);
    status = generation_.status();
    *response.mutable_finished() = generation_.finished();
  }
  if (!attempts_.empty()) ReleaseUnstarted();
  timer_.reset();
  LogAndCount(response.finished(), status);
  if (status.ok()) client_->Send(std::move(response));
  // Before the client hears of the end: its id is free by then.
  if (in_queue_) router_.admission().Leave(ticket_);
  client_->End(std::move(status));
}

void GenerationCall::ReleaseUnstarted() {
  Attempt& attempt = *attempts_.back();
  // A retry that finds no workers leaves it the current one until the end.
  if (std::exchange(attempt.released, true)) return;
  if (attempt.route.prefill.has_value() && attempt.prefill == nullptr) {
    router_.pool().OnRequestEnded(*attempt.route.prefill, std::nullopt);
  }
  if (attempt.decode == nullptr) {
    router_.pool().OnRequestEnded(attempt.route.decode, std::nullopt);
  }
}

void GenerationCall::LogRetry(std::string_view reason) const {
  router_.metrics().CountRetry(reason);
  LOG(WARNING) << "request " << Name() << " retry reason " << reason
               << AttemptForLog();
}

void GenerationCall::LogAndCount(const v1::GenerateFinished& finished,
                                 const absl::Status& status) {
  RouterMetrics& metrics = router_.metrics();
  const v1::Usage& usage = finished.usage();
  const v1::Timing& timing = finished.timing();
  metrics.CountRequest(status.code());
  metrics.prompt_tokens.Increment(usage.prompt_tokens());
  metrics.cached_tokens.Increment(usage.cached_tokens());
  metrics.generated_tokens.Increment(usage.completion_tokens());
  metrics.queue_time.Observe(timing.queue_seconds());
  inter_token_latency_.FlushTo(&metrics.inter_token_latency);
  LOG(INFO) << "request " << Name() << " outcome " << OutcomeName(status.code())
            << " reason "
            << (status.ok() ? v1::FinishReason_Name(finished.finish_reason())
                            : std::string(status.message()))
            << " prompt " << usage.prompt_tokens() << " cached "
            << usage.cached_tokens() << " output " << usage.completion_tokens()
            << " queue " << timing.queue_seconds() << " prefill "
            << timing.prefill_seconds() << " transfer "
            << timing.kv_transfer_seconds() << " transfer_bytes "
            << timing.kv_transfer_bytes() << " ttft " << timing.ttft_seconds()
            << " total " << timing.total_seconds() << AttemptForLog();
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
