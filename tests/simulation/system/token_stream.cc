#include "tests/simulation/system/token_stream.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "server/convert.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

template <typename Message>
void AddTokens(const ScoredTokens& tokens, Message* to) {
  to->set_first_token_index(tokens.first_index);
  for (size_t i = 0; i < tokens.tokens.size(); ++i) {
    to->add_token_ids(tokens.tokens[i].token_id);
    to->add_logprobs(tokens.tokens[i].logprob);
    if (tokens.num_top > 0) *to->add_top_logprobs() = ToProto(tokens.TopOf(i));
  }
}

void FillEnd(const GenerationOutcome& outcome, v1::DecodeFinished* out) {
  out->set_finish_reason(outcome.reason == FinishReason::kStopToken
                             ? v1::WORKER_FINISH_REASON_STOP_TOKEN
                             : v1::WORKER_FINISH_REASON_LENGTH);
  out->set_prompt_tokens(outcome.prompt_tokens);
  out->set_cached_tokens(outcome.cached_tokens);
  out->set_completion_tokens(outcome.output_tokens);
  out->set_decode_cached_tokens(outcome.decode_cached_tokens);
}

}  // namespace

template <typename Response>
TokenStream<Response>::TokenStream(StreamStart<Response> start,
                                   const TokenStreamParts* parts,
                                   GenerationRequest request)
    : parts_(parts),
      id_(request.id),
      first_sample_(request.sample_index),
      num_samples_(request.num_samples),
      attempt_(request.attempt),
      stream_(std::move(start), parts->streams,
              {.on_peer_gone =
                   [this] {
                     if (stream_.is_cut()) parts_->on_cut();
                     Abort();
                     parts_->wake();
                   },
               .on_flow = [this](bool paused) { OnFlow(paused); },
               .on_over = parts->wake}) {
  std::vector<TokenSink*> sinks;
  for (uint32_t i = 0; i < request.num_samples; ++i) {
    sinks.push_back(&samples_.emplace_back(this, request.sample_index + i));
  }
  const absl::Status status = parts_->engine->Submit(std::move(request), sinks);
  if (status.ok()) return;
  samples_.clear();
  stream_.End(absl::IsResourceExhausted(status)
                  ? WithRetryDelay(status, absl::Seconds(1))
                  : status);
}

// All samples: they wait for the same reader.
template <typename Response>
void TokenStream<Response>::OnFlow(bool paused) {
  if (paused) parts_->on_paused();
  parts_->engine->SetPaused({.id = id_,
                             .first_sample = first_sample_,
                             .num_samples = num_samples_,
                             .paused = paused});
  parts_->wake();
}

// The first one last: the others may wait for its prompt.
template <typename Response>
void TokenStream<Response>::Abort() {
  for (auto sample = samples_.rbegin(); sample != samples_.rend(); ++sample) {
    sample->Abort();
  }
}

template <typename Response>
void TokenStream<Response>::Sample::OnKvHandle(const KvHandle& handle) {
  if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
    Response response;
    response.set_kv_handle(SerializeKvHandle(handle));
    stream_->Tell(std::move(response));
  } else {
    LOG(FATAL) << "a KV handle for a decode";
  }
}

template <typename Response>
void TokenStream<Response>::Sample::OnProgress(uint32_t computed_tokens) {
  if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
    Response response;
    response.mutable_progress()->set_computed_tokens(computed_tokens);
    stream_->Tell(std::move(response));
  } else {
    LOG(FATAL) << "progress for a decode";
  }
}

template <typename Response>
void TokenStream<Response>::Sample::OnPromptLogprobs(
    const ScoredTokens& tokens) {
  Response response;
  AddTokens(tokens, response.mutable_prompt_logprobs());
  stream_->Tell(std::move(response));
}

template <typename Response>
void TokenStream<Response>::Sample::OnTokens(const ScoredTokens& tokens) {
  Response response;
  v1::TokenChunk* chunk = nullptr;
  if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
    chunk = response.mutable_first_tokens();
  } else {
    chunk = response.mutable_chunk();
  }
  chunk->set_sample_index(index_);
  chunk->set_attempt(stream_->attempt_);
  AddTokens(tokens, chunk);
  stream_->Tell(std::move(response));
}

template <typename Response>
void TokenStream<Response>::Sample::OnFinished(
    const GenerationOutcome& outcome) {
  ended_ = true;
  if (outcome.status.ok()) {
    Response response;
    if constexpr (std::is_same_v<Response, v1::PrefillResponse>) {
      response.mutable_released()->set_cached_tokens(outcome.cached_tokens);
    } else {
      v1::DecodeFinished* const finished = response.mutable_finished();
      finished->set_sample_index(index_);
      finished->set_attempt(stream_->attempt_);
      FillEnd(outcome, finished);
      *finished->mutable_load() = LoadOf({stream_->parts_->engine});
    }
    stream_->Tell(std::move(response));
  }
  stream_->OnSampleEnd(outcome);
}

template <typename Response>
void TokenStream<Response>::Sample::Abort() {
  if (!ended_) stream_->parts_->engine->Abort(stream_->id_, index_);
}

template <typename Response>
void TokenStream<Response>::Tell(Response response) {
  if (end_ != SampleEnd::kFailed) stream_.Send(std::move(response));
}

template <typename Response>
void TokenStream<Response>::OnSampleEnd(const GenerationOutcome& outcome) {
  parts_->on_outcome(outcome);
  const absl::Status status = ToPeer(outcome.status);
  SampleEnd end = SampleEnd::kFailed;
  if (status.ok()) end = SampleEnd::kFinished;
  if (absl::IsCancelled(status)) end = SampleEnd::kAborted;
  if (end_ != SampleEnd::kFailed && end >= end_) {
    end_ = end;
    end_status_ = status;
    if (end == SampleEnd::kFailed) Abort();
  }
  if (++num_ended_ == samples_.size()) stream_.End(end_status_);
}

template <typename Response>
absl::Status TokenStream<Response>::ToPeer(const absl::Status& status) const {
  if (absl::IsCancelled(status) && parts_->gate->is_cut()) {
    return DrainingError();
  }
  constexpr bool kExports = std::is_same_v<Response, v1::PrefillResponse>;
  if (kExports && absl::IsAborted(status)) {
    return WithReason(status, "IMPORTER_LOST");
  }
  if (!absl::IsUnavailable(status)) return status;
  return WithReason(absl::UnavailableError("the worker's group is not whole"),
                    "GROUP_LOST");
}

template class TokenStream<v1::PrefillResponse>;
template class TokenStream<v1::DecodeResponse>;

}  // namespace baton
