#include "server/token_stream_reactor.h"

#include <functional>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// Tokens between two flushes of a stream's metrics.
constexpr uint32_t kFlushInterval = 64;
constexpr absl::Duration kQueueFullRetryDelay = absl::Seconds(1);

template <typename Response>
constexpr char kCallName[] = "decode";
template <>
constexpr char kCallName<v1::PrefillResponse>[] = "prefill";

}  // namespace

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
  stream_->Tell(KvHandleMessage<Response>(handle));
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnProgress(
    uint32_t computed_tokens) {
  stream_->Tell(ProgressMessage<Response>(computed_tokens));
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnPromptLogprobs(
    const ScoredTokens& tokens) {
  stream_->Tell(PromptLogprobsMessage<Response>(tokens));
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnTokens(
    const ScoredTokens& tokens) {
  ReachFaultPoint(FaultPoint::kTokensDrawn);
  stream_->MeasureTokens(tokens.tokens.size(), &last_token_);
  stream_->Tell(TokensMessage<Response>(name(), tokens));
}

template <typename Response>
void TokenStreamReactor<Response>::Sample::OnFinished(
    const GenerationOutcome& outcome) {
  ended_.store(true);
  if (outcome.status.ok()) {
    stream_->Tell(
        EndMessage<Response>(name(), outcome, stream_->environment_.engines));
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
  return StatusForPeer<Response>(status, environment_.gate->is_cut());
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
