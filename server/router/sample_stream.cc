#include "server/router/sample_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {

SampleStream::SampleStream(const Tokenizer* tokenizer,
                           const GenerationPlan* plan)
    : plan_(plan),
      detokenizer_(tokenizer, plan->skip_special_tokens),
      stop_matcher_(plan->stop_strings) {}

absl::Status SampleStream::Append(const v1::TokenChunk& chunk,
                                  v1::GenerateChunk* out) {
  if (chunk.logprobs_size() != chunk.token_ids_size()) {
    return absl::InternalError(
        absl::StrCat("a worker sent ", chunk.token_ids_size(), " tokens with ",
                     chunk.logprobs_size(), " log-probabilities"));
  }
  const int num_top = plan_->num_top_logprobs > 0 ? chunk.token_ids_size() : 0;
  if (chunk.top_logprobs_size() != num_top) {
    return absl::InternalError(
        absl::StrCat("a worker sent ", chunk.token_ids_size(), " tokens with ",
                     chunk.top_logprobs_size(), " lists of alternatives"));
  }
  if (chunk.first_token_index() > num_tokens()) {
    return absl::InternalError(absl::StrCat("a worker sent token ",
                                            chunk.first_token_index(),
                                            " after token ", num_tokens()));
  }
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
    if (met_stop_string()) return absl::OkStatus();
    const uint64_t index = uint64_t{chunk.first_token_index()} + i;
    const bool known = index < num_tokens();
    if (known && token_ids_[index] != chunk.token_ids(i)) {
      return absl::InternalError(
          absl::StrCat("workers disagree about token ", index));
    }
    if (known) continue;
    RETURN_IF_ERROR(AppendNew(chunk, i, out));
  }
  return absl::OkStatus();
}

absl::Status SampleStream::AppendNew(const v1::TokenChunk& chunk, int i,
                                     v1::GenerateChunk* out) {
  if (met_stop_token_ || met_length()) {
    return absl::InternalError(
        absl::StrCat("a worker sent token ", num_tokens(), ", past the end"));
  }
  if (out->token_ids_size() == 0) out->set_first_token_index(num_tokens());
  const uint32_t id = chunk.token_ids(i);
  token_ids_.push_back(id);
  out->add_token_ids(id);
  out->add_logprobs(chunk.logprobs(i));
  if (chunk.top_logprobs_size() > 0) {
    *out->add_top_logprobs() = chunk.top_logprobs(i);
  }
  met_stop_token_ =
      std::find(plan_->stop_token_ids.begin(), plan_->stop_token_ids.end(),
                id) != plan_->stop_token_ids.end();
  if (!met_stop_token_) AppendText(id, out->mutable_text());
  return absl::OkStatus();
}

void SampleStream::AppendText(uint32_t id, std::string* out) {
  if (plan_->stop_strings.empty() || num_tokens() <= plan_->min_tokens) {
    detokenizer_.Append(id, out);
    return;
  }
  new_text_.clear();
  detokenizer_.Append(id, &new_text_);
  Search(new_text_, out);
}

void SampleStream::Search(std::string_view text, std::string* out) {
  stop_string_ = stop_matcher_.Append(text, out);
  if (met_stop_string() && plan_->include_stop_string) {
    out->append(plan_->stop_strings[*stop_string_]);
  }
}

void SampleStream::Flush(v1::GenerateChunk* out) {
  if (met_stop_string()) return;
  std::string* const text = out->mutable_text();
  if (plan_->stop_strings.empty() || num_tokens() <= plan_->min_tokens) {
    detokenizer_.Flush(text);
    return;
  }
  new_text_.clear();
  detokenizer_.Flush(&new_text_);
  Search(new_text_, text);
  if (!met_stop_string()) stop_matcher_.Flush(text);
}

void SampleStream::FillReason(v1::GenerateFinished* finished) const {
  if (met_stop_string()) {
    finished->set_finish_reason(v1::FINISH_REASON_STOP_STRING);
    finished->set_stop_string(plan_->stop_strings[*stop_string_]);
    return;
  }
  if (!met_stop_token_) {
    CHECK(met_length());
    finished->set_finish_reason(v1::FINISH_REASON_LENGTH);
    return;
  }
  const auto eos_end = plan_->stop_token_ids.begin() + plan_->num_eos_token_ids;
  const bool is_eos = std::find(plan_->stop_token_ids.begin(), eos_end,
                                token_ids_.back()) != eos_end;
  finished->set_finish_reason(is_eos ? v1::FINISH_REASON_EOS
                                     : v1::FINISH_REASON_STOP_TOKEN);
  finished->set_stop_token_id(token_ids_.back());
}

}  // namespace baton
