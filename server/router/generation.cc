#include "server/router/generation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

absl::Status PromptLost() {
  return WithReason(
      absl::UnavailableError(
          "a worker was lost before all log-probabilities of the prompt came"),
      "WORKER_LOST");
}

// Of a prefill call that is sound itself: whoever was to pull its KV gave up,
// is gone, or never came.
bool IsImporterLost(const absl::Status& status) {
  return absl::IsAborted(status) && ErrorReason(status) == "IMPORTER_LOST";
}

double Seconds(absl::Duration duration) {
  return absl::ToDoubleSeconds(duration);
}

// The first sample alone imports the prompt's KV, and speaks only once that is
// there; the others may compute a short prompt themselves before.
bool IsOfFirstSample(const v1::DecodeResponse& message,
                     const Attempt& attempt) {
  const uint32_t first = attempt.goal.first_sample;
  if (message.has_chunk()) return message.chunk().sample_index() == first;
  return message.has_finished() && message.finished().sample_index() == first;
}

}  // namespace

Generation::Generation(GenerationPlan plan, const Options& options)
    : options_(options), plan_(std::move(plan)), prompt_stream_(&plan_) {
  CHECK(plan_.sampling.seed.has_value());
  for (uint32_t i = 0; i < plan_.num_samples; ++i) {
    samples_.emplace_back(i, options_.tokenizer, &plan_);
  }
  summary_.set_seed(*plan_.sampling.seed);
  summary_.mutable_usage()->set_prompt_tokens(
      static_cast<uint32_t>(plan_.prompt_ids.size()));
}

GenerationActions Generation::OnArrived() {
  if (phase_ != GenerationPhase::kQueued) return {};
  return {.queue = true};
}

GenerationActions Generation::OnAdmitted(absl::Time now) {
  if (phase_ != GenerationPhase::kQueued) return {};
  MoveTo(GenerationPhase::kRunning);
  summary_.mutable_timing()->set_queue_seconds(Seconds(now - options_.arrival));
  attempts_.emplace_back(0,
                         AttemptGoal{.num_samples = plan_.num_samples,
                                     .prompt_from = PromptFrom(),
                                     .wait_end = now + options_.worker_wait});
  return {.find_route = {0}};
}

GenerationActions Generation::OnRefused(absl::Status why, absl::Time now) {
  if (phase_ != GenerationPhase::kQueued) return {};
  return Fail(std::move(why), now);
}

GenerationActions Generation::OnRoute(uint32_t number, Route route,
                                      uint64_t id_counter) {
  Attempt& attempt = attempts_[number];
  if (attempt.phase() != AttemptPhase::kRouting) return {};
  attempt.route = std::move(route);
  attempt.id_counter = id_counter;
  summary_.set_fingerprint(attempt.route.fingerprint);
  attempt.prefill_open = attempt.route.prefill.has_value();
  if (attempt.prefill_open) {
    attempt.MoveTo(AttemptPhase::kPrefilling);
    return {.start_prefill = number};
  }
  attempt.MoveTo(AttemptPhase::kDecoding);
  return {.start_decode = number};
}

GenerationActions Generation::OnPrefillMessage(uint32_t number,
                                               v1::PrefillResponse* message,
                                               absl::Time now) {
  Attempt* const attempt = Running(number);
  if (attempt == nullptr) return {};
  switch (message->event_case()) {
    case v1::PrefillResponse::kKvHandle:
      if (attempt->phase() != AttemptPhase::kPrefilling) {
        return Fail(absl::InternalError("a second KV handle"), now);
      }
      if (attempt->goal.num_samples == 0) {
        attempt->MoveTo(AttemptPhase::kReleasing);
        return {};
      }
      attempt->kv_handle = std::move(*message->mutable_kv_handle());
      attempt->MoveTo(AttemptPhase::kDecoding);
      return {.start_decode = number};
    case v1::PrefillResponse::kFirstTokens:
      return OnTokens(attempt, message->first_tokens(), now);
    case v1::PrefillResponse::kPromptLogprobs:
      return OnPromptLogprobs(attempt, message->prompt_logprobs(), now);
    case v1::PrefillResponse::kReleased:
      OnReleased(*attempt, message->released());
      return {};
    case v1::PrefillResponse::kProgress:
    case v1::PrefillResponse::EVENT_NOT_SET:
      return {};
  }
  return {};
}

GenerationActions Generation::OnPrefillEnd(uint32_t number,
                                           const absl::Status& status,
                                           absl::Time now) {
  Attempt* const attempt = Running(number);
  if (attempt == nullptr) return {};
  attempt->prefill_open = false;
  if (status.ok() && attempt->phase() == AttemptPhase::kPrefilling) {
    return Fail(absl::InternalError("a prefill call ended without a handle"),
                now);
  }
  if (IsImporterLost(status) && !attempt->decode_has_kv &&
      attempt->phase() == AttemptPhase::kDecoding) {
    attempt->decode_gave_up = true;
    return {.start_grace = number};
  }
  if (!status.ok() && !attempt->decode_has_kv) {
    return OnAttemptFailed(attempt, *attempt->route.prefill, status, now);
  }
  GenerationActions actions;
  OnPrefillOver(attempt, now, &actions);
  return actions;
}

GenerationActions Generation::OnDecodeMessage(uint32_t number,
                                              const v1::DecodeResponse& message,
                                              absl::Time now) {
  Attempt* const attempt = Running(number);
  if (attempt == nullptr || attempt->phase() != AttemptPhase::kDecoding) {
    return {};
  }
  attempt->decode_answered = true;
  const bool had_kv = attempt->decode_has_kv;
  attempt->decode_has_kv |= IsOfFirstSample(message, *attempt);
  GenerationActions actions;
  if (message.has_prompt_logprobs()) {
    actions = OnPromptLogprobs(attempt, message.prompt_logprobs(), now);
  } else if (message.has_chunk()) {
    actions = OnTokens(attempt, message.chunk(), now);
  } else if (message.has_finished()) {
    actions = OnDecodeFinished(attempt, message.finished(), now);
  }
  if (attempt->decode_has_kv && !had_kv && attempt->prefill_open) {
    actions.start_grace = number;
  }
  return actions;
}

GenerationActions Generation::OnDecodeEnd(uint32_t number,
                                          const absl::Status& status,
                                          absl::Time now) {
  Attempt* const attempt = Running(number);
  if (attempt == nullptr || attempt->phase() != AttemptPhase::kDecoding) {
    return {};
  }
  if (status.ok()) {
    return Fail(absl::InternalError("a decode call ended without `finished`"),
                now);
  }
  return OnAttemptFailed(attempt, attempt->route.decode, status, now);
}

GenerationActions Generation::OnGraceEnded(uint32_t number, absl::Time now) {
  Attempt* const attempt = Running(number);
  if (attempt == nullptr) return {};
  if (attempt->decode_gave_up && !attempt->decode_has_kv) {
    return OnAttemptFailed(attempt, attempt->route.decode,
                           absl::AbortedError("the KV was not pulled"), now);
  }
  if (!attempt->prefill_open && !attempt->decode_gave_up) return {};
  GenerationActions actions;
  if (attempt->prefill_open) actions.end_prefill.push_back(number);
  // Whatever it still says is not waited for.
  attempt->prefill_open = false;
  attempt->decode_gave_up = false;
  OnPrefillOver(attempt, now, &actions);
  return actions;
}

GenerationActions Generation::OnEarlyEnd(absl::Status why, absl::Time now) {
  if (phase_ == GenerationPhase::kFinished) return {};
  return Fail(std::move(why), now);
}

v1::WorkerRequest Generation::MakeRequest(const Attempt& attempt,
                                          uint32_t rank) const {
  const std::span<const uint32_t> tokens =
      samples_[attempt.goal.first_sample].token_ids();
  v1::WorkerRequest request =
      MakeWorkerRequest(plan_, attempt, tokens.first(attempt.goal.num_resumed));
  request.mutable_id()->set_router_nonce(options_.router_nonce);
  request.set_local_rank(rank);
  return request;
}

v1::PrefillRequest Generation::MakePrefillRequest(uint32_t number) const {
  const Attempt& attempt = attempts_[number];
  v1::PrefillRequest request;
  *request.mutable_request() = MakeRequest(attempt, attempt.route.prefill_rank);
  return request;
}

v1::DecodeRequest Generation::MakeDecodeRequest(uint32_t number) const {
  const Attempt& attempt = attempts_[number];
  v1::DecodeRequest request;
  *request.mutable_request() = MakeRequest(attempt, attempt.route.decode_rank);
  if (attempt.goal.num_samples > 1) {
    request.mutable_request()->set_num_samples(attempt.goal.num_samples);
  }
  if (attempt.route.prefill.has_value()) {
    request.set_kv_handle(attempt.kv_handle);
  }
  return request;
}

std::vector<v1::GenerateResponse> Generation::TakeResponses() {
  std::vector<v1::GenerateResponse> responses;
  if (prompt_logprobs_.token_ids_size() > 0) {
    responses.emplace_back().mutable_prompt_logprobs()->Swap(&prompt_logprobs_);
  }
  if (!prompt_stream_.complete()) return responses;
  const v1::GenerateFinished* const summary =
      MayTellEnds() ? &summary_ : nullptr;
  for (Sample& sample : samples_) sample.TakeResponses(summary, &responses);
  return responses;
}

uint32_t Generation::num_tokens() const {
  uint32_t sum = 0;
  for (const Sample& sample : samples_) sum += sample.num_tokens();
  return sum;
}

void Generation::MoveTo(GenerationPhase to) {
  CHECK(IsLegalTransition(phase_, to))
      << static_cast<int>(phase_) << " to " << static_cast<int>(to);
  phase_ = to;
}

Attempt* Generation::Running(uint32_t attempt) {
  return attempts_[attempt].is_running() ? &attempts_[attempt] : nullptr;
}

GenerationActions Generation::OnPromptLogprobs(Attempt* attempt,
                                               const v1::PromptLogprobs& tokens,
                                               absl::Time now) {
  if (absl::Status status = prompt_stream_.Append(tokens, &prompt_logprobs_);
      !status.ok()) {
    return Fail(std::move(status), now);
  }
  fingerprint_ = attempt->route.fingerprint;
  GenerationActions actions;
  if (attempt->goal.num_samples == 0 && prompt_stream_.complete()) {
    EndCalls(attempt, &actions);
  }
  Settle(now, &actions);
  return actions;
}

GenerationActions Generation::OnTokens(Attempt* attempt,
                                       const v1::TokenChunk& tokens,
                                       absl::Time now) {
  // One that brings the prompt alone makes a token that nobody asked for.
  if (tokens.attempt() != attempt->number || attempt->goal.num_samples == 0) {
    return {};
  }
  if (!attempt->Has(tokens.sample_index())) {
    return Fail(absl::InternalError("a chunk of a sample that was not asked"),
                now);
  }
  Sample& sample = samples_[tokens.sample_index()];
  if (absl::Status status = sample.Append(tokens); !status.ok()) {
    return Fail(std::move(status), now);
  }
  if (sample.num_tokens() > 0 && fingerprint_.empty()) {
    fingerprint_ = attempt->route.fingerprint;
  }
  if (sample.num_tokens() > 0 && !summary_.timing().has_ttft_seconds()) {
    summary_.mutable_timing()->set_ttft_seconds(
        Seconds(now - options_.arrival));
  }
  if (sample.met_stop_string()) return OnStopString(attempt, &sample, now);
  // Generated tokens, which the decode server may send first, wait for the
  // prompt's.
  return {.send = prompt_stream_.complete() && sample.HasChunk()};
}

// Or a chunk behind it, which the worker sent before it knew.
GenerationActions Generation::OnStopString(Attempt* attempt, Sample* sample,
                                           absl::Time now) {
  if (!sample->over()) sample->End(now - options_.arrival);
  if (attempt->phase() == AttemptPhase::kReleasing) return {};
  GenerationActions actions;
  if (!IsOver(*attempt)) {
    // A decode server that has not spoken may not know the request yet.
    if (attempt->decode_answered && sample->TakeAbort()) {
      actions.abort = {attempt->number, sample->index()};
    }
  } else if (AwaitsPrompt(*attempt) && attempt->prefill_open &&
             attempt->phase() == AttemptPhase::kDecoding) {
    actions.end_decode.push_back(attempt->number);
    attempt->MoveTo(AttemptPhase::kReleasing);  // For the prompt's part.
  } else {
    EndCalls(attempt, &actions);
  }
  Settle(now, &actions);
  return actions;
}

GenerationActions Generation::OnDecodeFinished(
    Attempt* attempt, const v1::DecodeFinished& finished, absl::Time now) {
  if (finished.attempt() != attempt->number) return {};
  if (!attempt->Has(finished.sample_index())) {
    return Fail(absl::InternalError("an end of a sample that was not asked"),
                now);
  }
  Sample& sample = samples_[finished.sample_index()];
  if (absl::Status status = sample.OnFinished(finished); !status.ok()) {
    return Fail(std::move(status), now);
  }
  if (sample.index() == 0) SumUp(*attempt, finished);
  if (!sample.over()) sample.End(now - options_.arrival);
  GenerationActions actions;
  if (IsOver(*attempt)) {
    // An Abort may have been lost, or come too early.
    const auto last = samples_.begin() + attempt->goal.first_sample +
                      attempt->goal.num_samples;
    if (std::any_of(last - attempt->goal.num_samples, last,
                    [](const Sample& s) { return s.worker_may_go_on(); })) {
      actions.end_decode.push_back(attempt->number);
    }
    attempt->MoveTo(attempt->prefill_open ? AttemptPhase::kReleasing
                                          : AttemptPhase::kOver);
  }
  Settle(now, &actions);
  return actions;
}

// What the workers of the first sample say of the prompt: they brought it there
// or computed it; those of the others found it. What an attempt that resumes
// took from a cache may be of the answer.
void Generation::OnReleased(const Attempt& attempt,
                            const v1::PrefillReleased& released) {
  if (!attempt.Has(0)) return;
  v1::Timing* const timing = summary_.mutable_timing();
  timing->set_queue_seconds(timing->queue_seconds() + released.queue_seconds());
  timing->set_prefill_seconds(released.prefill_seconds());
  summary_.mutable_usage()->set_cached_tokens(
      std::min(released.cached_tokens(), summary_.usage().prompt_tokens()));
}

void Generation::SumUp(const Attempt& attempt,
                       const v1::DecodeFinished& finished) {
  v1::Timing* const timing = summary_.mutable_timing();
  timing->set_queue_seconds(timing->queue_seconds() + finished.queue_seconds());
  if (attempt.route.prefill.has_value()) {
    timing->set_kv_transfer_seconds(finished.kv_transfer_seconds());
    timing->set_kv_transfer_bytes(finished.kv_transfer_bytes());
    summary_.mutable_usage()->set_decode_cached_tokens(std::min(
        finished.decode_cached_tokens(), summary_.usage().prompt_tokens()));
  } else {
    timing->set_prefill_seconds(finished.prefill_seconds());
    summary_.mutable_usage()->set_cached_tokens(
        std::min(finished.cached_tokens(), summary_.usage().prompt_tokens()));
  }
}

std::optional<uint32_t> Generation::PromptFrom() const {
  if (prompt_stream_.complete()) return std::nullopt;
  return prompt_stream_.next();
}

bool Generation::AwaitsPrompt(const Attempt& attempt) const {
  return attempt.tells_prompt && !prompt_stream_.complete();
}

bool Generation::IsOver(const Attempt& attempt) const {
  return std::all_of(samples_.begin(), samples_.end(),
                     [&attempt](const Sample& sample) {
                       return !attempt.Has(sample.index()) || sample.over();
                     });
}

bool Generation::IsOver() const {
  const auto is_over = [](const auto& part) { return part.over(); };
  return std::all_of(samples_.begin(), samples_.end(), is_over) &&
         std::all_of(attempts_.begin(), attempts_.end(), is_over);
}

// The prompt's part of them is whole, or nothing more of it is waited for.
bool Generation::MayTellEnds() const {
  if (phase_ == GenerationPhase::kFinished) return status_.ok();
  return std::none_of(attempts_.begin(), attempts_.end(), [](const Attempt& a) {
    return a.prefill_open && a.Has(0);
  });
}

bool Generation::HasResponses() const {
  if (prompt_logprobs_.token_ids_size() > 0) return true;
  if (!prompt_stream_.complete()) return false;
  const bool tells_ends = MayTellEnds();
  return std::any_of(
      samples_.begin(), samples_.end(), [tells_ends](const Sample& sample) {
        return sample.HasChunk() || (tells_ends && sample.HasEnd());
      });
}

void Generation::EndCalls(Attempt* attempt, GenerationActions* actions) {
  if (attempt->prefill_open) actions->end_prefill.push_back(attempt->number);
  if (attempt->phase() == AttemptPhase::kDecoding) {
    actions->end_decode.push_back(attempt->number);
  }
  attempt->prefill_open = false;
  attempt->MoveTo(AttemptPhase::kOver);
}

void Generation::Settle(absl::Time now, GenerationActions* actions) {
  if (IsOver()) return Finish(absl::OkStatus(), now, actions);
  actions->send |= HasResponses();
}

GenerationActions Generation::Fail(absl::Status status, absl::Time now) {
  GenerationActions actions;
  Fail(std::move(status), now, &actions);
  return actions;
}

void Generation::Fail(absl::Status status, absl::Time now,
                      GenerationActions* actions) {
  for (Attempt& attempt : attempts_) {
    if (!attempt.over()) EndCalls(&attempt, actions);
  }
  Finish(std::move(status), now, actions);
}

void Generation::Finish(absl::Status status, absl::Time now,
                        GenerationActions* actions) {
  MoveTo(GenerationPhase::kFinished);
  if (status.ok() && !prompt_stream_.complete()) status = PromptLost();
  status_ = std::move(status);
  for (Sample& sample : samples_) sample.Release();
  summary_.mutable_usage()->set_completion_tokens(num_tokens());
  summary_.mutable_timing()->set_total_seconds(Seconds(now - options_.arrival));
  actions->send |= HasResponses();
  actions->finish = true;
}

}  // namespace baton
