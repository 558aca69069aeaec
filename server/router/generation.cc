#include "server/router/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// Between two looks for a worker: the first, and the longest.
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(320);

// A worker that shuts down cancels its calls; we did not ask for that.
bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status);
}

absl::Status WorkerLost(std::string_view when) {
  return WithReason(
      absl::UnavailableError(absl::StrCat(
          "a worker was lost ", absl::string_view(when.data(), when.size()))),
      "WORKER_LOST");
}

void FillSampling(const GenerationPlan& plan, v1::WorkerSampling* out) {
  const SamplingPlan& sampling = plan.sampling;
  out->set_temperature(sampling.temperature);
  out->set_top_p(sampling.top_p);
  out->set_top_k(sampling.top_k);
  out->set_min_p(sampling.min_p);
  out->set_seed(*sampling.seed);
  out->set_repetition_penalty(sampling.repetition_penalty);
  out->set_presence_penalty(sampling.presence_penalty);
  out->set_frequency_penalty(sampling.frequency_penalty);
  for (const auto& [token_id, bias] : sampling.logit_bias) {
    v1::LogitBias* const entry = out->add_logit_bias();
    entry->set_token_id(token_id);
    entry->set_bias(bias);
  }
  out->set_num_top_logprobs(plan.num_top_logprobs);
  out->set_logprobs_after_truncation(plan.logprobs_after_truncation);
}

double Seconds(absl::Duration duration) {
  return absl::ToDoubleSeconds(duration);
}

// The first sample alone imports the prompt's KV, and speaks only once that is
// there; the others may compute a short prompt themselves before.
bool IsOfFirstSample(const v1::DecodeResponse& message) {
  if (message.has_chunk()) return message.chunk().sample_index() == 0;
  return message.has_finished() && message.finished().sample_index() == 0;
}

}  // namespace

Generation::Generation(GenerationPlan plan, const Options& options)
    : options_(options),
      plan_(std::move(plan)),
      next_pause_(kFirstPause),
      prompt_stream_(&plan_) {
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
  summary_.mutable_timing()->set_queue_seconds(Seconds(now - options_.arrival));
  return {.find_route = true};
}

GenerationActions Generation::OnRoute(Route route, uint64_t id_counter) {
  if (phase_ != GenerationPhase::kQueued) return {};
  route_ = std::move(route);
  id_counter_ = id_counter;
  summary_.set_fingerprint(route_.fingerprint);
  kv_handle_.clear();
  decode_answered_ = false;
  decode_has_kv_ = false;
  prefill_open_ = route_.prefill.has_value();
  if (prefill_open_) {
    MoveTo(GenerationPhase::kPrefilling);
    return {.start_prefill = true};
  }
  MoveTo(GenerationPhase::kDecoding);
  return {.start_decode = true};
}

GenerationActions Generation::OnRefused(absl::Status why, absl::Time now) {
  if (phase_ != GenerationPhase::kQueued) return {};
  if (now >= wait_end_) return Fail(std::move(why), now);
  const absl::Duration pause = std::min(next_pause_, wait_end_ - now);
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  return {.pause = pause};
}

GenerationActions Generation::OnPauseEnded() {
  if (phase_ != GenerationPhase::kQueued) return {};
  worst_route_ = RouteRank::kReady;
  return {.find_route = true};
}

GenerationActions Generation::OnPrefillMessage(uint32_t attempt,
                                               v1::PrefillResponse* message,
                                               absl::Time now) {
  if (IsOld(attempt)) return {};
  switch (message->event_case()) {
    case v1::PrefillResponse::kKvHandle:
      if (phase_ != GenerationPhase::kPrefilling) {
        return Fail(absl::InternalError("a second KV handle"), now);
      }
      kv_handle_ = std::move(*message->mutable_kv_handle());
      MoveTo(GenerationPhase::kDecoding);
      return {.start_decode = true};
    case v1::PrefillResponse::kFirstTokens:
      return OnTokens(message->first_tokens(), now);
    case v1::PrefillResponse::kPromptLogprobs:
      return OnPromptLogprobs(message->prompt_logprobs(), now);
    case v1::PrefillResponse::kReleased: {
      const v1::PrefillReleased& released = message->released();
      v1::Timing* const timing = summary_.mutable_timing();
      timing->set_queue_seconds(timing->queue_seconds() +
                                released.queue_seconds());
      timing->set_prefill_seconds(released.prefill_seconds());
      summary_.mutable_usage()->set_cached_tokens(released.cached_tokens());
      return {};
    }
    case v1::PrefillResponse::kProgress:
    case v1::PrefillResponse::EVENT_NOT_SET:
      return {};
  }
  return {};
}

GenerationActions Generation::OnPrefillEnd(uint32_t attempt,
                                           const absl::Status& status,
                                           absl::Time now) {
  if (IsOld(attempt)) return {};
  prefill_open_ = false;
  if (phase_ == GenerationPhase::kReleasing) {
    GenerationActions actions;
    Finish(absl::OkStatus(), now, &actions);
    return actions;
  }
  if (status.ok() && phase_ == GenerationPhase::kPrefilling) {
    return Fail(absl::InternalError("a prefill call ended without a handle"),
                now);
  }
  if (status.ok() || decode_has_kv_) {
    if (prompt_stream_.complete()) return {.send = HasEndToTell()};
    return Fail(WorkerLost("before all log-probabilities of the prompt came"),
                now);
  }
  return OnAttemptFailed(*route_.prefill, status, now);
}

GenerationActions Generation::OnDecodeMessage(uint32_t attempt,
                                              const v1::DecodeResponse& message,
                                              absl::Time now) {
  if (IsOld(attempt) || phase_ != GenerationPhase::kDecoding) return {};
  decode_answered_ = true;
  const bool had_kv = decode_has_kv_;
  decode_has_kv_ |= IsOfFirstSample(message);
  const bool may_start_grace = decode_has_kv_ && !had_kv && prefill_open_;
  GenerationActions actions;
  if (message.has_prompt_logprobs()) {
    actions = OnPromptLogprobs(message.prompt_logprobs(), now);
  } else if (message.has_chunk()) {
    actions = OnTokens(message.chunk(), now);
  } else if (message.has_finished()) {
    actions = OnDecodeFinished(message.finished(), now);
  }
  actions.start_grace |= may_start_grace && !actions.finish;
  return actions;
}

GenerationActions Generation::OnDecodeEnd(uint32_t attempt,
                                          const absl::Status& status,
                                          absl::Time now) {
  if (IsOld(attempt) || phase_ != GenerationPhase::kDecoding) return {};
  if (status.ok()) {
    return Fail(absl::InternalError("a decode call ended without `finished`"),
                now);
  }
  return OnAttemptFailed(route_.decode, status, now);
}

GenerationActions Generation::OnGraceEnded(uint32_t attempt, absl::Time now) {
  if (IsOld(attempt) || !prefill_open_) return {};
  prefill_open_ = false;  // Whatever it still says is not waited for.
  GenerationActions actions = {.end_prefill = true};
  if (phase_ == GenerationPhase::kReleasing) {
    Finish(absl::OkStatus(), now, &actions);
  }
  actions.send |= HasEndToTell();
  return actions;
}

GenerationActions Generation::OnEarlyEnd(absl::Status why, absl::Time now) {
  if (phase_ == GenerationPhase::kFinished) return {};
  return Fail(std::move(why), now);
}

v1::WorkerRequest Generation::MakeRequest(uint32_t local_rank) const {
  v1::WorkerRequest request;
  request.set_local_rank(local_rank);
  request.mutable_id()->set_router_nonce(options_.router_nonce);
  request.mutable_id()->set_counter(id_counter_);
  request.set_attempt(attempt_);
  request.mutable_token_ids()->Add(plan_.prompt_ids.begin(),
                                   plan_.prompt_ids.end());
  request.set_original_prompt_tokens(
      static_cast<uint32_t>(plan_.prompt_ids.size()));
  FillSampling(plan_, request.mutable_sampling());
  if (plan_.prompt_logprobs_from.has_value()) {
    request.set_prompt_logprobs_from(*plan_.prompt_logprobs_from);
  }
  request.set_max_tokens(plan_.max_tokens);
  request.set_min_tokens(plan_.min_tokens);
  request.mutable_stop_token_ids()->Add(plan_.stop_token_ids.begin(),
                                        plan_.stop_token_ids.end());
  request.set_num_eos_token_ids(plan_.num_eos_token_ids);
  return request;
}

v1::PrefillRequest Generation::MakePrefillRequest() const {
  v1::PrefillRequest request;
  *request.mutable_request() = MakeRequest(route_.prefill_rank);
  return request;
}

v1::DecodeRequest Generation::MakeDecodeRequest() const {
  v1::DecodeRequest request;
  *request.mutable_request() = MakeRequest(route_.decode_rank);
  if (plan_.num_samples > 1) {
    request.mutable_request()->set_num_samples(plan_.num_samples);
  }
  if (route_.prefill.has_value()) request.set_kv_handle(kv_handle_);
  return request;
}

std::vector<v1::GenerateResponse> Generation::TakeResponses() {
  std::vector<v1::GenerateResponse> responses;
  if (prompt_logprobs_.token_ids_size() > 0) {
    responses.emplace_back().mutable_prompt_logprobs()->Swap(&prompt_logprobs_);
  }
  if (!prompt_stream_.complete()) return responses;
  for (Sample& sample : samples_) {
    sample.TakeResponses(MayTellEnds() ? &summary_ : nullptr, &responses);
  }
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

bool Generation::IsOld(uint32_t attempt) const {
  return attempt != attempt_ || phase_ == GenerationPhase::kFinished ||
         phase_ == GenerationPhase::kQueued;
}

GenerationActions Generation::OnPromptLogprobs(const v1::PromptLogprobs& tokens,
                                               absl::Time now) {
  if (absl::Status status = prompt_stream_.Append(tokens, &prompt_logprobs_);
      !status.ok()) {
    return Fail(std::move(status), now);
  }
  return {.send = HasResponses()};
}

GenerationActions Generation::OnTokens(const v1::TokenChunk& tokens,
                                       absl::Time now) {
  if (tokens.attempt() != attempt_) return {};
  if (tokens.sample_index() >= samples_.size()) {
    return Fail(absl::InternalError("a chunk of a sample that was not asked"),
                now);
  }
  Sample& sample = samples_[tokens.sample_index()];
  if (absl::Status status = sample.Append(tokens); !status.ok()) {
    return Fail(std::move(status), now);
  }
  if (sample.num_tokens() > 0 && !summary_.timing().has_ttft_seconds()) {
    summary_.mutable_timing()->set_ttft_seconds(
        Seconds(now - options_.arrival));
  }
  if (sample.met_stop_string()) return OnStopString(&sample, now);
  // Generated tokens, which the decode server may send first, wait for the
  // prompt's.
  return {.send = prompt_stream_.complete() && sample.HasChunk()};
}

// Or a chunk behind it, which the worker sent before it knew.
GenerationActions Generation::OnStopString(Sample* sample, absl::Time now) {
  if (!sample->over()) sample->End(now - options_.arrival);
  if (phase_ == GenerationPhase::kReleasing) return {};
  GenerationActions actions;
  if (!IsOver()) {
    // A decode server that has not spoken may not know the request yet.
    if (decode_answered_ && sample->TakeAbort()) {
      actions.abort_sample = sample->index();
    }
    actions.send = HasResponses();
  } else if (!prompt_stream_.complete() && prefill_open_ &&
             phase_ == GenerationPhase::kDecoding) {
    actions.end_decode = true;
    MoveTo(GenerationPhase::kReleasing);  // For the prompt's part.
  } else {
    actions = EndCalls();
    Finish(absl::OkStatus(), now, &actions);
  }
  return actions;
}

GenerationActions Generation::OnDecodeFinished(
    const v1::DecodeFinished& finished, absl::Time now) {
  if (finished.attempt() != attempt_) return {};
  if (finished.sample_index() >= samples_.size()) {
    return Fail(absl::InternalError("an end of a sample that was not asked"),
                now);
  }
  Sample& sample = samples_[finished.sample_index()];
  if (absl::Status status = sample.OnFinished(finished); !status.ok()) {
    return Fail(std::move(status), now);
  }
  if (sample.index() == 0) SumUp(finished);
  if (!sample.over()) sample.End(now - options_.arrival);
  if (!IsOver()) return {.send = HasResponses()};
  GenerationActions actions;
  // An Abort may have been lost, or come too early.
  for (const Sample& other : samples_) {
    actions.end_decode |= other.worker_may_go_on();
  }
  if (prefill_open_) {
    MoveTo(GenerationPhase::kReleasing);
    actions.send = HasResponses();
  } else {
    Finish(absl::OkStatus(), now, &actions);
  }
  return actions;
}

// What the decode worker says of the prompt. The first sample brought it there
// or computed it; the others found it.
void Generation::SumUp(const v1::DecodeFinished& finished) {
  v1::Timing* const timing = summary_.mutable_timing();
  timing->set_queue_seconds(timing->queue_seconds() + finished.queue_seconds());
  if (route_.prefill.has_value()) {
    timing->set_kv_transfer_seconds(finished.kv_transfer_seconds());
    timing->set_kv_transfer_bytes(finished.kv_transfer_bytes());
  } else {
    timing->set_prefill_seconds(finished.prefill_seconds());
    summary_.mutable_usage()->set_cached_tokens(finished.cached_tokens());
  }
}

GenerationActions Generation::OnAttemptFailed(WorkerId worker,
                                              const absl::Status& status,
                                              absl::Time now) {
  if (!IsRetryable(status)) return Fail(status, now);
  GenerationActions actions;
  if (num_tokens() > 0) {
    actions = Fail(WorkerLost("after the first token"), now);
  } else if (attempt_ == options_.max_retries) {
    actions = Fail(
        WithRetryDelay(WorkerLost("in every attempt"), absl::Seconds(1)), now);
  } else {
    actions = {
        .end_prefill = prefill_open_,
        .end_decode = phase_ == GenerationPhase::kDecoding,
        .find_route = true,
        .retry_reason = absl::IsAborted(status) ? "kv_lost" : "unavailable"};
    MoveTo(GenerationPhase::kQueued);
    prefill_open_ = false;
    ++attempt_;
    worst_route_ = RouteRank::kUntried;
    wait_end_ = now + options_.worker_wait;
    if (absl::IsAborted(status) && route_.prefill.has_value()) {
      // The KV was lost on the way: it may have been either end's fault.
      avoid_.push_back(*route_.prefill);
      avoid_.push_back(route_.decode);
    } else {
      avoid_.push_back(worker);
    }
  }
  if (!absl::IsAborted(status)) actions.suspect = worker;
  return actions;
}

bool Generation::IsOver() const {
  return std::all_of(samples_.begin(), samples_.end(),
                     [](const Sample& sample) { return sample.over(); });
}

// The prompt's part of them is whole, or nothing more of it is waited for.
bool Generation::MayTellEnds() const {
  return phase_ == GenerationPhase::kFinished ? status_.ok() : !prefill_open_;
}

bool Generation::HasEndToTell() const {
  return prompt_stream_.complete() && MayTellEnds() &&
         std::any_of(samples_.begin(), samples_.end(),
                     [](const Sample& sample) { return sample.HasEnd(); });
}

bool Generation::HasResponses() const {
  if (prompt_logprobs_.token_ids_size() > 0 || HasEndToTell()) return true;
  return prompt_stream_.complete() &&
         std::any_of(samples_.begin(), samples_.end(),
                     [](const Sample& sample) { return sample.HasChunk(); });
}

GenerationActions Generation::EndCalls() const {
  return {.end_prefill = prefill_open_,
          .end_decode = phase_ == GenerationPhase::kDecoding};
}

GenerationActions Generation::Fail(absl::Status status, absl::Time now) {
  GenerationActions actions = EndCalls();
  Finish(std::move(status), now, &actions);
  return actions;
}

void Generation::Finish(absl::Status status, absl::Time now,
                        GenerationActions* actions) {
  MoveTo(GenerationPhase::kFinished);
  if (status.ok() && !prompt_stream_.complete()) {
    status = WorkerLost("before all log-probabilities of the prompt came");
  }
  status_ = std::move(status);
  for (Sample& sample : samples_) sample.Release();
  summary_.mutable_usage()->set_completion_tokens(num_tokens());
  summary_.mutable_timing()->set_total_seconds(Seconds(now - options_.arrival));
  actions->send |= HasResponses();
  actions->finish = true;
}

}  // namespace baton
