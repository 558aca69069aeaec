#include "server/token_stream_reactor.h"

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/logging.h"
#include "server/convert.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// An id and a log-probability, and a message around them.
constexpr size_t kTokenBytes = 8;
constexpr size_t kMessageBytes = 64;
// Tokens between two flushes of a stream's metrics.
constexpr uint32_t kFlushInterval = 64;
constexpr absl::Duration kQueueFullRetryDelay = absl::Seconds(1);

v1::TokenChunk* MutableChunk(v1::PrefillResponse* response) {
  return response->mutable_first_tokens();
}
v1::TokenChunk* MutableChunk(v1::DecodeResponse* response) {
  return response->mutable_chunk();
}

template <typename Message>
void MergeTokens(Message* last, const Message& next) {
  last->mutable_token_ids()->MergeFrom(next.token_ids());
  last->mutable_logprobs()->MergeFrom(next.logprobs());
  last->mutable_top_logprobs()->MergeFrom(next.top_logprobs());
}

bool MergePrompt(v1::PromptLogprobs* last, const v1::PromptLogprobs& next) {
  if (last->first_token_index() + last->token_ids_size() !=
      next.first_token_index()) {
    return false;
  }
  MergeTokens(last, next);
  return true;
}

bool MergeChunks(v1::TokenChunk* last, const v1::TokenChunk& next) {
  if (last->sample_index() != next.sample_index() ||
      last->attempt() != next.attempt() ||
      last->first_token_index() + last->token_ids_size() !=
          next.first_token_index()) {
    return false;
  }
  MergeTokens(last, next);
  return true;
}

// Token by token, as TokenChunk and PromptLogprobs have them.
template <typename Message>
void AddTokens(const ScoredTokens& tokens, Message* to) {
  to->set_first_token_index(tokens.first_index);
  for (size_t i = 0; i < tokens.tokens.size(); ++i) {
    to->add_token_ids(tokens.tokens[i].token_id);
    to->add_logprobs(tokens.tokens[i].logprob);
    if (tokens.num_top > 0) *to->add_top_logprobs() = ToProto(tokens.TopOf(i));
  }
}

template <typename Message>
size_t TokenBytes(const Message& message) {
  size_t tokens = message.token_ids_size();
  for (const v1::TopLogprobs& top : message.top_logprobs()) {
    tokens += top.token_ids_size();
  }
  return kMessageBytes * (1 + message.top_logprobs_size()) +
         kTokenBytes * tokens;
}

void FillEnd(const GenerationOutcome& outcome, v1::PrefillReleased* out) {
  out->set_queue_seconds(absl::ToDoubleSeconds(outcome.queue_time));
  out->set_prefill_seconds(absl::ToDoubleSeconds(outcome.prefill_time));
  out->set_cached_tokens(outcome.cached_tokens);
}

void FillEnd(const GenerationOutcome& outcome, v1::DecodeFinished* out) {
  out->set_finish_reason(outcome.reason == FinishReason::kStopToken
                             ? v1::WORKER_FINISH_REASON_STOP_TOKEN
                             : v1::WORKER_FINISH_REASON_LENGTH);
  out->set_prompt_tokens(outcome.prompt_tokens);
  out->set_cached_tokens(outcome.cached_tokens);
  out->set_decode_cached_tokens(outcome.decode_cached_tokens);
  out->set_completion_tokens(outcome.output_tokens);
  out->set_queue_seconds(absl::ToDoubleSeconds(outcome.queue_time));
  out->set_prefill_seconds(absl::ToDoubleSeconds(outcome.prefill_time));
  out->set_kv_transfer_seconds(absl::ToDoubleSeconds(outcome.transfer_time));
  out->set_kv_transfer_bytes(outcome.transfer_bytes);
}

template <typename Response>
constexpr char kCallName[] = "decode";
template <>
constexpr char kCallName<v1::PrefillResponse>[] = "prefill";

}  // namespace

v1::GetLoadResponse LoadOf(const std::vector<LLMEngine*>& engines) {
  v1::GetLoadResponse sum;
  for (const LLMEngine* engine : engines) {
    const v1::RankLoad rank = ToProto(engine->load());
    sum.set_running_requests(sum.running_requests() + rank.running_requests());
    sum.set_waiting_requests(sum.waiting_requests() + rank.waiting_requests());
    sum.set_free_kv_blocks(sum.free_kv_blocks() + rank.free_kv_blocks());
    sum.set_total_kv_blocks(sum.total_kv_blocks() + rank.total_kv_blocks());
    sum.set_pending_prefill_tokens(sum.pending_prefill_tokens() +
                                   rank.pending_prefill_tokens());
    *sum.add_ranks() = rank;
  }
  return sum;
}

bool TokenStreamTraits::Merge(v1::PrefillResponse* last,
                              v1::PrefillResponse& next) {
  if (last->has_prompt_logprobs() && next.has_prompt_logprobs()) {
    return MergePrompt(last->mutable_prompt_logprobs(), next.prompt_logprobs());
  }
  if (!last->has_progress() || !next.has_progress()) return false;
  *last = std::move(next);
  return true;
}

bool TokenStreamTraits::Merge(v1::DecodeResponse* last,
                              v1::DecodeResponse& next) {
  if (last->has_prompt_logprobs() && next.has_prompt_logprobs()) {
    return MergePrompt(last->mutable_prompt_logprobs(), next.prompt_logprobs());
  }
  return last->has_chunk() && next.has_chunk() &&
         MergeChunks(last->mutable_chunk(), next.chunk());
}

size_t TokenStreamTraits::Bytes(const v1::PrefillResponse& message) {
  return TokenBytes(message.first_tokens()) +
         TokenBytes(message.prompt_logprobs()) + message.kv_handle().size();
}

size_t TokenStreamTraits::Bytes(const v1::DecodeResponse& message) {
  return TokenBytes(message.chunk()) + TokenBytes(message.prompt_logprobs());
}

template <typename Response>
TokenStreamReactor<Response>::TokenStreamReactor(
    grpc::CallbackServerContext* context,
    const TokenStreamEnvironment& environment, uint32_t num_samples)
    : StreamReactor<Response, TokenStreamTraits>(context, environment.streams),
      environment_(environment),
      arrival_(environment.clock->Now()),
      num_samples_(num_samples),
      inter_token_latency_(LatencyBuckets()) {}

template <typename Response>
void TokenStreamReactor<Response>::Start(
    absl::StatusOr<GenerationRequest> request, LLMEngine* engine) {
  if (!request.ok()) return Refuse(request.status());
  engine_ = engine;
  id_ = request->id;
  sample_index_ = request->sample_index;
  attempt_ = request->attempt;
  std::vector<TokenSink*> sinks;
  for (uint32_t i = 0; i < num_samples_; ++i) {
    sinks.push_back(&samples_.emplace_back(this, sample_index_ + i));
  }
  RequestGate* const gate = environment_.gate;
  const std::function<void()> abort = [engine, id = id_, first = sample_index_,
                                       count = num_samples_] {
    for (uint32_t i = count; i > 0; --i) engine->Abort(id, first + i - 1);
  };
  gate->OnCut(this, abort);
  // From here on the engine may end it, and the call, at any time.
  const absl::Status status = engine->Submit(*std::move(request), sinks);
  if (!status.ok()) return Refuse(status);
  if (gate->is_cut()) abort();  // The first came too early.
}

template <typename Response>
void TokenStreamReactor<Response>::Refuse(const absl::Status& status) {
  samples_.clear();  // None of them is to be aborted.
  total_.status = status;
  environment_.metrics->OnRequestEnd(total_);
  LOG(INFO) << "request " << id_ << " sample " << sample_index_ << " samples "
            << num_samples_ << " attempt " << attempt_ << " call "
            << kCallName<Response> << " outcome " << OutcomeName(status.code())
            << " refused";
  this->End(absl::IsResourceExhausted(status)
                ? WithReason(WithRetryDelay(status, kQueueFullRetryDelay),
                             "QUEUE_FULL")
                : status);
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnKvHandle(const KvHandle& handle) {
  if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
    Response response;
    response.set_kv_handle(SerializeKvHandle(handle));
    stream_->Tell(std::move(response));
  } else {
    LOG(FATAL) << "a KV handle for a decode";
  }
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnProgress(
    uint32_t computed_tokens) {
  if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
    Response response;
    response.mutable_progress()->set_computed_tokens(computed_tokens);
    stream_->Tell(std::move(response));
  } else {
    LOG(FATAL) << "progress for a decode";
  }
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnPromptLogprobs(
    const ScoredTokens& tokens) {
  Response response;
  AddTokens(tokens, response.mutable_prompt_logprobs());
  stream_->Tell(std::move(response));
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnTokens(
    const ScoredTokens& tokens) {
  ReachFaultPoint(FaultPoint::kTokensDrawn);
  stream_->MeasureTokens(tokens.tokens.size(), &last_token_);
  Response response;
  v1::TokenChunk* chunk = MutableChunk(&response);
  chunk->set_sample_index(index_);
  chunk->set_attempt(stream_->attempt_);
  AddTokens(tokens, chunk);
  stream_->Tell(std::move(response));
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnFinished(
    const GenerationOutcome& outcome) {
  ended_.store(true);
  if (outcome.status.ok()) {
    Response response;
    if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
      FillEnd(outcome, response.mutable_released());
    } else {
      v1::DecodeFinished* finished = response.mutable_finished();
      finished->set_sample_index(index_);
      finished->set_attempt(stream_->attempt_);
      FillEnd(outcome, finished);
      *finished->mutable_load() = LoadOf(stream_->environment_.engines);
    }
    stream_->Tell(std::move(response));
  }
  stream_->OnSampleEnd(index_ == stream_->sample_index_, outcome);
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::Abort() {
  if (!ended_.load()) {
    stream_->engine_->Abort(stream_->id_, index_);
  }
}

// All samples: they wait for the same reader.
template <typename Response>
void TokenStreamReactor<Response>::OnFlow(bool paused) {
  engine_->SetPaused({.id = id_,
                      .first_sample = sample_index_,
                      .num_samples = num_samples_,
                      .paused = paused});
}

template <typename Response>
void TokenStreamReactor<Response>::AbortSamples() {
  for (auto sample = samples_.rbegin(); sample != samples_.rend(); ++sample) {
    sample->Abort();
  }
}

template <typename Response>
void TokenStreamReactor<Response>::Tell(Response response) {
  if (end_ != SampleEnd::kFailed) this->Send(std::move(response));
}

template <typename Response>
void TokenStreamReactor<Response>::OnSampleEnd(
    bool is_first, const GenerationOutcome& outcome) {
  const SampleEnd end = EndOf(outcome);
  const bool decides = end_ != SampleEnd::kFailed && end >= end_;
  GenerationOutcome total = is_first ? outcome : total_;
  total.output_tokens = total_.output_tokens + outcome.output_tokens;
  total.status = decides ? outcome.status : total_.status;
  total.ended_in = decides ? outcome.ended_in : total_.ended_in;
  total_ = std::move(total);
  if (decides) end_ = end;
  // Of a request that is live already the samples are another call's.
  if (decides && end == SampleEnd::kFailed &&
      !absl::IsAlreadyExists(outcome.status)) {
    AbortSamples();
  }
  if (++num_ended_ < num_samples_) return;
  FlushMetrics();
  environment_.metrics->OnRequestEnd(total_);
  LogEnd();
  this->End(ToPeer(total_.status));
}

template <typename Response>
SampleEnd TokenStreamReactor<Response>::EndOf(
    const GenerationOutcome& outcome) const {
  if (outcome.status.ok()) return SampleEnd::kFinished;
  return absl::IsCancelled(ToPeer(outcome.status)) ? SampleEnd::kAborted
                                                   : SampleEnd::kFailed;
}

template <typename Response>
absl::Status TokenStreamReactor<Response>::ToPeer(
    const absl::Status& status) const {
  if (absl::IsCancelled(status) && environment_.gate->is_cut()) {
    return DrainingError();
  }
  // The router asks the decode server what became of it.
  constexpr bool kExports = std::is_same_v<Response, v1::PrefillResponse>;
  if (kExports && absl::IsAborted(status)) {
    return WithReason(status, "IMPORTER_LOST");
  }
  if (!absl::IsUnavailable(status)) return status;
  return WithReason(absl::UnavailableError("the worker's group is not whole"),
                    "GROUP_LOST");
}

template <typename Response>
void TokenStreamReactor<Response>::MeasureTokens(size_t num_tokens,
                                                 absl::Time* last_token) {
  const absl::Time now = environment_.clock->Now();
  if (*last_token != absl::InfinitePast()) {
    inter_token_latency_.Observe(absl::ToDoubleSeconds(now - *last_token));
  } else if (first_token_ == absl::InfinitePast()) {
    first_token_ = now;
    environment_.metrics->time_to_first_token().Observe(
        absl::ToDoubleSeconds(now - arrival_));
  }
  *last_token = now;
  unflushed_tokens_ += static_cast<uint32_t>(num_tokens);
  if (unflushed_tokens_ >= kFlushInterval) FlushMetrics();
}

template <typename Response>
void TokenStreamReactor<Response>::FlushMetrics() {
  inter_token_latency_.FlushTo(&environment_.metrics->inter_token_latency());
  environment_.metrics->generated_tokens().Increment(unflushed_tokens_);
  unflushed_tokens_ = 0;
}

template <typename Response>
void TokenStreamReactor<Response>::LogEnd() const {
  const absl::Duration time_to_first_token =
      first_token_ == absl::InfinitePast() ? absl::ZeroDuration()
                                           : first_token_ - arrival_;
  LOG(INFO) << "request " << id_ << " sample " << sample_index_ << " samples "
            << num_samples_ << " attempt " << attempt_ << " call "
            << kCallName<Response> << " outcome "
            << OutcomeName(total_.status.code())
            << (total_.status.ok() ? "" : " reason ") << total_.status.message()
            << " prompt " << total_.prompt_tokens << " cached "
            << total_.cached_tokens + total_.decode_cached_tokens << " output "
            << total_.output_tokens << " queue "
            << absl::FormatDuration(total_.queue_time) << " prefill "
            << absl::FormatDuration(total_.prefill_time) << " transfer "
            << absl::FormatDuration(total_.transfer_time) << " bytes "
            << total_.transfer_bytes << " ttft "
            << absl::FormatDuration(time_to_first_token) << " total "
            << absl::FormatDuration(environment_.clock->Now() - arrival_);
}

template class TokenStreamReactor<v1::PrefillResponse>;
template class TokenStreamReactor<v1::DecodeResponse>;

}  // namespace baton
