#include "server/router/sample.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace baton {

Sample::Sample(uint32_t index, const Tokenizer* tokenizer,
               const GenerationPlan* plan)
    : index_(index),
      stream_interval_(plan->stream_interval),
      stream_(tokenizer, plan) {}

absl::Status Sample::Append(const v1::TokenChunk& tokens) {
  if (met_stop_string()) return absl::OkStatus();
  const bool is_first = num_tokens() == 0;
  RETURN_IF_ERROR(stream_.Append(tokens, &chunk_));
  const auto waiting = static_cast<uint32_t>(chunk_.token_ids_size());
  ready_ |= waiting > 0 && (is_first || waiting >= stream_interval_);
  return absl::OkStatus();
}

absl::Status Sample::OnFinished(const v1::DecodeFinished& finished) {
  const bool is_end =
      finished.finish_reason() == v1::WORKER_FINISH_REASON_STOP_TOKEN
          ? stream_.met_stop_token()
          : stream_.met_length();
  if (!met_stop_string() &&
      (!is_end || finished.completion_tokens() != num_tokens())) {
    return absl::InternalError(absl::StrCat(
        "a worker finished sample ", index_, " after ",
        finished.completion_tokens(), " tokens; ", num_tokens(), " came"));
  }
  if (worker_ended_) {
    return absl::InternalError(
        absl::StrCat("a worker finished sample ", index_, " twice"));
  }
  worker_ended_ = true;
  return absl::OkStatus();
}

void Sample::End(absl::Duration since_arrival) {
  if (chunk_.token_ids_size() == 0) chunk_.set_first_token_index(num_tokens());
  stream_.Flush(&chunk_);
  Release();
  over_ = true;
  total_ = since_arrival;
}

bool Sample::HasChunk() const {
  return ready_ && (chunk_.token_ids_size() > 0 || !chunk_.text().empty());
}

void Sample::TakeResponses(const v1::GenerateFinished* summary,
                           std::vector<v1::GenerateResponse>* out) {
  if (HasChunk()) {
    v1::GenerateChunk* const chunk = out->emplace_back().mutable_chunk();
    chunk->Swap(&chunk_);
    chunk->set_sample_index(index_);
    ready_ = over_;
  }
  if (summary == nullptr || !HasEnd()) return;
  told_ = true;
  v1::GenerateFinished* const finished = out->emplace_back().mutable_finished();
  *finished = *summary;
  finished->set_sample_index(index_);
  stream_.FillReason(finished);
  finished->mutable_usage()->set_completion_tokens(num_tokens());
  finished->mutable_timing()->set_total_seconds(absl::ToDoubleSeconds(total_));
}

}  // namespace baton
