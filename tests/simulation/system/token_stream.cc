#include "tests/simulation/system/token_stream.h"

#include <utility>
#include <vector>

#include "server/edge/grpc_status.h"

namespace baton {

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
  stream_->Tell(KvHandleMessage<Response>(handle));
}

template <typename Response>
void TokenStream<Response>::Sample::OnProgress(uint32_t computed_tokens) {
  stream_->Tell(ProgressMessage<Response>(computed_tokens));
}

template <typename Response>
void TokenStream<Response>::Sample::OnPromptLogprobs(
    const ScoredTokens& tokens) {
  stream_->Tell(PromptLogprobsMessage<Response>(tokens));
}

template <typename Response>
void TokenStream<Response>::Sample::OnTokens(const ScoredTokens& tokens) {
  stream_->Tell(TokensMessage<Response>(name(), tokens));
}

template <typename Response>
void TokenStream<Response>::Sample::OnFinished(
    const GenerationOutcome& outcome) {
  ended_ = true;
  if (outcome.status.ok()) {
    stream_->Tell(
        EndMessage<Response>(name(), outcome, {stream_->parts_->engine}));
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
  return StatusForPeer<Response>(status, parts_->gate->is_cut());
}

template class TokenStream<v1::PrefillResponse>;
template class TokenStream<v1::DecodeResponse>;

}  // namespace baton
