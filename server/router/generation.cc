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

}  // namespace

Generation::Generation(GenerationPlan plan, const Options& options)
    : options_(options),
      plan_(std::move(plan)),
      next_pause_(kFirstPause),
      prompt_stream_(&plan_),
      stream_(options_.tokenizer, &plan_) {
  CHECK(plan_.sampling.seed.has_value());
  finished_.set_seed(*plan_.sampling.seed);
  finished_.mutable_usage()->set_prompt_tokens(
      static_cast<uint32_t>(plan_.prompt_ids.size()));
}

GenerationActions Generation::OnArrived() {
  if (phase_ != GenerationPhase::kQueued) return {};
  return {.queue = true};
}

GenerationActions Generation::OnAdmitted(absl::Time now) {
  if (phase_ != GenerationPhase::kQueued) return {};
  finished_.mutable_timing()->set_queue_seconds(
      Seconds(now - options_.arrival));
  return {.find_route = true};
}

GenerationActions Generation::OnRoute(Route route, uint64_t id_counter) {
  if (phase_ != GenerationPhase::kQueued) return {};
  route_ = std::move(route);
  id_counter_ = id_counter;
  finished_.set_fingerprint(route_.fingerprint);
  kv_handle_.clear();
  decode_answered_ = false;
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
      v1::Timing* const timing = finished_.mutable_timing();
      timing->set_queue_seconds(timing->queue_seconds() +
                                released.queue_seconds());
      timing->set_prefill_seconds(released.prefill_seconds());
      finished_.mutable_usage()->set_cached_tokens(released.cached_tokens());
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
  // The decode server streams: it has pulled everything.
  if (status.ok() || decode_answered_) {
    if (prompt_stream_.complete()) return {};
    return Fail(WorkerLost("before all log-probabilities of the prompt came"),
                now);
  }
  return OnAttemptFailed(*route_.prefill, status, now);
}

GenerationActions Generation::OnDecodeMessage(uint32_t attempt,
                                              const v1::DecodeResponse& message,
                                              absl::Time now) {
  if (IsOld(attempt) || phase_ != GenerationPhase::kDecoding) return {};
  GenerationActions actions = OnFirstDecodeMessage();
  GenerationActions more;
  if (message.has_prompt_logprobs()) {
    more = OnPromptLogprobs(message.prompt_logprobs(), now);
  } else if (message.has_chunk()) {
    more = OnTokens(message.chunk(), now);
  } else if (message.has_finished()) {
    more = OnDecodeFinished(message.finished(), now);
  }
  more.start_grace |= actions.start_grace && !more.finish;
  return more;
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
  return actions;
}

GenerationActions Generation::OnEarlyEnd(absl::Status why, absl::Time now) {
  if (phase_ == GenerationPhase::kFinished) return {};
  return Fail(std::move(why), now);
}

v1::WorkerRequest Generation::MakeRequest() const {
  v1::WorkerRequest request;
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
  return {.send_prompt_logprobs = prompt_logprobs_.token_ids_size() > 0,
          .send_chunk = HasChunkToSend()};
}

// Generated tokens, which the decode server may send first, wait for the
// prompt's.
bool Generation::HasChunkToSend() const {
  return prompt_stream_.complete() &&
         (chunk_.token_ids_size() > 0 || !chunk_.text().empty());
}

GenerationActions Generation::OnTokens(const v1::TokenChunk& tokens,
                                       absl::Time now) {
  if (tokens.attempt() != attempt_) return {};
  if (tokens.sample_index() != 0) {
    return Fail(absl::InternalError("a chunk of a sample that was not asked"),
                now);
  }
  const bool is_first = num_tokens() == 0;
  if (absl::Status status = stream_.Append(tokens, &chunk_); !status.ok()) {
    return Fail(std::move(status), now);
  }
  if (is_first && num_tokens() > 0) {
    finished_.mutable_timing()->set_ttft_seconds(
        Seconds(now - options_.arrival));
  }
  GenerationActions actions;
  if (stream_.met_stop_string() && !prompt_stream_.complete() &&
      prefill_open_ && phase_ == GenerationPhase::kDecoding) {
    actions.end_decode = true;
    MoveTo(GenerationPhase::kReleasing);  // For the prompt's part.
  } else if (stream_.met_stop_string()) {
    actions = EndCalls();
    Finish(absl::OkStatus(), now, &actions);
  } else {
    const auto waiting = static_cast<uint32_t>(chunk_.token_ids_size());
    actions.send_chunk =
        HasChunkToSend() && (is_first || waiting >= plan_.stream_interval);
  }
  return actions;
}

// The decode server speaks only once it holds the prompt's KV.
GenerationActions Generation::OnFirstDecodeMessage() {
  if (std::exchange(decode_answered_, true)) return {};
  return {.start_grace = prefill_open_};
}

GenerationActions Generation::OnDecodeFinished(
    const v1::DecodeFinished& finished, absl::Time now) {
  if (finished.attempt() != attempt_) return {};
  const bool is_end =
      finished.finish_reason() == v1::WORKER_FINISH_REASON_STOP_TOKEN
          ? stream_.met_stop_token()
          : stream_.met_length();
  if (!is_end || finished.completion_tokens() != num_tokens()) {
    return Fail(absl::InternalError(absl::StrCat(
                    "a worker finished after ", finished.completion_tokens(),
                    " tokens; ", num_tokens(), " came")),
                now);
  }
  v1::Timing* const timing = finished_.mutable_timing();
  timing->set_queue_seconds(timing->queue_seconds() + finished.queue_seconds());
  if (route_.prefill.has_value()) {
    timing->set_kv_transfer_seconds(finished.kv_transfer_seconds());
    timing->set_kv_transfer_bytes(finished.kv_transfer_bytes());
  } else {
    timing->set_prefill_seconds(finished.prefill_seconds());
    finished_.mutable_usage()->set_cached_tokens(finished.cached_tokens());
  }
  GenerationActions actions;
  FlushText(&actions);
  if (prefill_open_) {
    MoveTo(GenerationPhase::kReleasing);
  } else {
    Finish(absl::OkStatus(), now, &actions);
  }
  return actions;
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

void Generation::FlushText(GenerationActions* actions) {
  const uint32_t next = num_tokens();
  if (chunk_.token_ids_size() == 0) chunk_.set_first_token_index(next);
  stream_.Flush(&chunk_);
  actions->send_chunk |= HasChunkToSend();
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
  actions->send_chunk |= HasChunkToSend();
  if (status_.ok()) stream_.FillReason(&finished_);
  finished_.mutable_usage()->set_completion_tokens(num_tokens());
  finished_.mutable_timing()->set_total_seconds(
      Seconds(now - options_.arrival));
  actions->finish = true;
}

}  // namespace baton
