#include "tests/simulation/system/router_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/logging.h"
#include "server/edge/request_gate.h"
#include "server/router/prefix_table.h"
#include "tests/simulation/system/simulated_router.h"
#include "tests/simulation/system/simulated_worker.h"

namespace baton {
namespace {

Generation::Options MachineOptions(SimulatedRouter& router) {
  return {.router_nonce = router.nonce(),
          .max_retries = router.options().max_retries,
          .worker_wait = router.options().worker_wait,
          .arrival = router.loop().now(),
          .tokenizer = router.options().tokenizer};
}

std::vector<PrefixKey> AffinityKeys(const GenerationPlan& plan) {
  if (plan.bypass_cache) return {};
  return PrefixKeysOf(plan.prompt_ids, plan.cache_salt);
}

void Cancel(SimulatedCall* call) {
  if (call != nullptr) call->Cancel();
}

}  // namespace

RouterCall::RouterCall(GenerationPlan plan, SimulatedRouter* router,
                       uint64_t number,
                       StreamStart<v1::GenerateResponse> client)
    : router_(*router),
      ticket_(number),
      deadline_(client.call->deadline()),
      prefix_keys_(AffinityKeys(plan)),
      generation_(std::move(plan), MachineOptions(*router)),
      client_(std::move(client), router->streams(),
              {.on_peer_gone = [this] { OnClientGone(); },
               .on_flow = [this](bool paused) { OnFlow(paused); },
               .on_over = [] {}}) {}

void RouterCall::Start() {
  Handle([](Generation& g, absl::Time) { return g.OnArrived(); });
}

void RouterCall::Cut() {
  Handle([](Generation& g, absl::Time now) {
    return g.OnEarlyEnd(DrainingError(), now);
  });
}

void RouterCall::OnCrash() {
  for (const auto& calls : calls_) router_.loop().Cancel(calls->timer);
}

absl::Status RouterCall::WhyClientIsGone() const {
  if (client_.is_cut()) {
    return WithReason(absl::AbortedError("the client reads too slowly"),
                      kSlowReaderReason);
  }
  return router_.loop().now() >= deadline_
             ? absl::DeadlineExceededError("the deadline has passed")
             : absl::CancelledError("the client is gone");
}

void RouterCall::OnClientGone() {
  const absl::Status why = WhyClientIsGone();
  Handle(
      [&why](Generation& g, absl::Time now) { return g.OnEarlyEnd(why, now); });
}

// Actions are carried out in their order, so the newest pace is the last one.
void RouterCall::OnFlow(bool paused) {
  client_paused_ = paused;
  if (paused) router_.CountPause();
  Handle([](Generation&, absl::Time) {
    Actions actions;
    actions.flow = true;
    return actions;
  });
}

bool RouterCall::is_over() const {
  if (!finished_ || !client_.is_over()) return false;
  return std::all_of(calls_.begin(), calls_.end(), [](const auto& calls) {
    return (calls->prefill == nullptr || calls->prefill_ended) &&
           (calls->decode == nullptr || calls->decode_ended);
  });
}

template <typename Event>
void RouterCall::Handle(Event&& event) {
  Actions actions = event(generation_, router_.loop().now());
  CheckAttempts();
  if (actions == Actions()) return;
  if (performing_) {
    pending_.push_back(std::move(actions));
    return;
  }
  performing_ = true;
  while (true) {
    Perform(actions);
    if (pending_.empty()) break;
    actions = std::move(pending_.front());
    pending_.pop_front();
  }
  performing_ = false;
}

// In the order of GenerationActions.
void RouterCall::Perform(const Actions& actions) {
  for (uint32_t i : actions.end_prefill) Cancel(calls_[i]->prefill.get());
  for (uint32_t i : actions.end_decode) Cancel(calls_[i]->decode.get());
  if (actions.suspect.has_value()) router_.OnSuspect(*actions.suspect);
  if (actions.queue) EnterQueue();
  if (!actions.find_route.empty()) ReleaseUnstarted();
  for (uint32_t attempt : actions.find_route) {
    if (!FindRoute(attempt, actions.retry_reason)) break;
  }
  if (actions.pause.has_value()) {
    const uint32_t number = actions.pause->attempt;
    StartTimer(
        calls_[number].get(), actions.pause->duration,
        [number](Generation& g, absl::Time) { return g.OnPauseEnded(number); });
  }
  if (actions.start_prefill) StartPrefill(calls_[*actions.start_prefill].get());
  if (actions.start_decode) StartDecode(calls_[*actions.start_decode].get());
  if (actions.abort.has_value()) {
    StartAbort(*calls_[actions.abort->attempt], actions.abort->sample_index);
  }
  if (actions.start_grace.has_value()) {
    const uint32_t number = *actions.start_grace;
    StartTimer(calls_[number].get(), router_.options().release_grace,
               [number](Generation& g, absl::Time now) {
                 return g.OnGraceEnded(number, now);
               });
  }
  if (actions.flow) FollowClient(client_paused_);
  if (actions.send) {
    for (v1::GenerateResponse& response : generation_.TakeResponses()) {
      client_.Send(std::move(response));
    }
  }
  if (actions.finish) Finish();
}

bool RouterCall::TakeRetry(uint32_t attempt, std::string_view reason) {
  const absl::Status taken =
      router_.TakeRetry(reason, generation_.attempt(attempt).goal.cause,
                        generation_.num_tokens() > 0);
  if (taken.ok()) return true;
  Handle([&](Generation& g, absl::Time now) {
    return g.OnRetryRefused(attempt, taken, now);
  });
  return false;
}

void RouterCall::EnterQueue() {
  const absl::Status entered = router_.admission().Enter(
      ticket_, generation_.plan().client_request_id,
      [self = shared_from_this()] {
        self->Handle(
            [](Generation& g, absl::Time now) { return g.OnAdmitted(now); });
      });
  in_queue_ = entered.ok();
  if (in_queue_) return;
  Handle([&entered](Generation& g, absl::Time now) {
    return g.OnRefused(entered, now);
  });
}

bool RouterCall::FindRoute(uint32_t attempt, std::string_view retry_reason) {
  if (calls_.empty()) {
    router_.retry_budget().OnBegan(generation_.plan().num_samples,
                                   router_.loop().now());
  }
  if (attempt == calls_.size()) {
    calls_.push_back(std::make_unique<Calls>(attempt));
  }
  RouteNeeds needs = generation_.NeedsOf(attempt);
  needs.prefix = prefix_keys_;
  absl::StatusOr<Route> route = router_.pool().FindRoute(needs);
  const bool is_retry = needs.IsRetry(retry_reason, route.ok());
  if (!route.ok()) {
    if (is_retry && !TakeRetry(attempt, retry_reason)) return false;
    Handle([&route, attempt](Generation& g, absl::Time now) {
      return g.OnNoRoute(attempt, route.status(), now);
    });
    return true;
  }
  Calls& calls = *calls_[attempt];
  calls.route = *route;
  calls.reports.Make(&router_.pool(), *route,
                     std::chrono::system_clock::time_point::max());
  if (is_retry && !TakeRetry(attempt, retry_reason)) return false;
  calls.id_counter = attempt == 0 ? ticket_.value() : router_.NextCounter();
  Handle([&route, &calls](Generation& g, absl::Time) {
    return g.OnRoute(calls.number, *std::move(route), calls.id_counter);
  });
  return true;
}

void RouterCall::StartPrefill(Calls* calls) {
  if (generation_.attempt(calls->number).over()) return;
  const auto self = shared_from_this();
  calls->prefill = router_.CallWorker<v1::PrefillResponse>(
      *calls->route->prefill, generation_.MakePrefillRequest(calls->number),
      deadline_,
      {.on_message =
           [self, calls](v1::PrefillResponse* message) {
             if (message->has_first_tokens() || message->has_released()) {
               calls->reports.prefill->OnAnswered();
             }
             self->Handle([&](Generation& g, absl::Time now) {
               return g.OnPrefillMessage(calls->number, message, now);
             });
           },
       .on_end =
           [self, calls](const absl::Status& status) {
             calls->prefill_ended = true;
             calls->reports.prefill->OnEnded(status);
             self->router_.pool().OnRequestEnded(*calls->route->prefill,
                                                 calls->route->prefill_rank,
                                                 std::nullopt);
             self->Handle([&](Generation& g, absl::Time now) {
               return g.OnPrefillEnd(calls->number, status, now);
             });
           }});
  calls->prefill->SetReading(!client_paused_);
}

void RouterCall::StartDecode(Calls* calls) {
  if (generation_.attempt(calls->number).over()) return;
  calls->num_unfinished = generation_.attempt(calls->number).goal.num_samples;
  const auto self = shared_from_this();
  calls->decode = router_.CallWorker<v1::DecodeResponse>(
      calls->route->decode, generation_.MakeDecodeRequest(calls->number),
      deadline_,
      {.on_message =
           [self, calls](v1::DecodeResponse* message) {
             calls->reports.decode->OnAnswered();
             if (message->has_finished()) {
               calls->load = message->finished().load();
               if (--calls->num_unfinished == 0) self->TellEnded(calls);
             }
             self->Handle([&](Generation& g, absl::Time now) {
               return g.OnDecodeMessage(calls->number, *message, now);
             });
           },
       .on_end =
           [self, calls](const absl::Status& status) {
             calls->decode_ended = true;
             calls->reports.decode->OnEnded(status);
             self->TellEnded(calls);
             self->Handle([&](Generation& g, absl::Time now) {
               return g.OnDecodeEnd(calls->number, status, now);
             });
           }});
  calls->decode->SetReading(!client_paused_);
}

void RouterCall::StartAbort(const Calls& calls, uint32_t sample_index) {
  v1::AbortRequest request;
  request.mutable_id()->set_router_nonce(router_.nonce());
  request.mutable_id()->set_counter(calls.id_counter);
  request.set_sample_index(sample_index);
  router_.AbortAtWorker(calls.route->decode, request);
}

void RouterCall::TellEnded(Calls* calls) {
  if (std::exchange(calls->told_ended, true)) return;
  router_.pool().OnRequestEnded(calls->route->decode, calls->route->decode_rank,
                                calls->load);
}

template <typename Event>
void RouterCall::StartTimer(Calls* calls, absl::Duration duration,
                            Event event) {
  router_.loop().Cancel(calls->timer);
  calls->timer = router_.loop().After(
      duration, [self = shared_from_this(), event] { self->Handle(event); });
}

void RouterCall::FollowClient(bool paused) {
  if (finished_) return;
  for (const auto& calls : calls_) {
    if (calls->prefill != nullptr) calls->prefill->SetReading(!paused);
    if (calls->decode != nullptr) calls->decode->SetReading(!paused);
  }
  if (in_queue_) router_.admission().SetPaused(ticket_, paused);
}

void RouterCall::Finish() {
  FollowClient(false);  // Calls that are over hear of their ends.
  CHECK(!std::exchange(finished_, true));
  router_.loop().Note("answered", ticket_.value(),
                      static_cast<uint64_t>(generation_.status().code()));
  ReleaseUnstarted();
  for (const auto& calls : calls_) router_.loop().Cancel(calls->timer);
  if (!calls_.empty()) {
    router_.retry_budget().OnEnded(generation_.plan().num_samples);
  }
  if (in_queue_) router_.admission().Leave(ticket_);
  client_.End(generation_.status());
}

void RouterCall::ReleaseUnstarted() {
  WorkerPool& pool = router_.pool();
  for (const auto& calls : calls_) {
    const bool is_over = generation_.attempt(calls->number).over();
    if (!is_over || !calls->route.has_value()) continue;
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

void RouterCall::CheckAttempts() const {
  for (uint32_t sample = 0; sample < generation_.plan().num_samples; ++sample) {
    int num_live = 0;
    for (uint32_t i = 0; i < generation_.num_attempts(); ++i) {
      const Attempt& attempt = generation_.attempt(i);
      num_live += !attempt.over() && attempt.Has(sample) ? 1 : 0;
    }
    CHECK_LE(num_live, 1) << "live attempts at sample " << sample;
  }
}

}  // namespace baton
