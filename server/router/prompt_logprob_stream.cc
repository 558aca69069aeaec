#include "server/router/prompt_logprob_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/baton/v1/inference.pb.h"

namespace baton {
namespace {

// The token at 0 has no log-probability.
uint64_t FirstToken(const GenerationPlan& plan) {
  if (!plan.prompt_logprobs_from.has_value()) return plan.prompt_ids.size();
  return std::max(*plan.prompt_logprobs_from, 1u);
}

}  // namespace

PromptLogprobStream::PromptLogprobStream(const GenerationPlan* plan)
    : plan_(plan), next_(FirstToken(*plan)) {}

absl::Status PromptLogprobStream::Append(const v1::PromptLogprobs& from,
                                         v1::PromptLogprobs* out) {
  const int count = from.token_ids_size();
  const int num_top = plan_->num_top_logprobs > 0 ? count : 0;
  if (from.logprobs_size() != count || from.top_logprobs_size() != num_top) {
    return absl::InternalError(
        absl::StrCat("a worker sent ", count, " tokens of the prompt with ",
                     from.logprobs_size(), " log-probabilities and ",
                     from.top_logprobs_size(), " lists of alternatives"));
  }
  if (from.first_token_index() > next_) {
    return absl::InternalError(
        absl::StrCat("a worker sent token ", from.first_token_index(),
                     " of the prompt in the place of ", next_));
  }
  for (int i = 0; i < count; ++i) {
    const uint64_t index = uint64_t{from.first_token_index()} + i;
    if (index >= plan_->prompt_ids.size() ||
        from.token_ids(i) != plan_->prompt_ids[index]) {
      return absl::InternalError(absl::StrCat("a worker sent another token ",
                                              index, " of the prompt"));
    }
    if (index < next_) continue;
    if (out->token_ids_size() == 0) {
      out->set_first_token_index(static_cast<uint32_t>(index));
    }
    out->add_token_ids(from.token_ids(i));
    out->add_logprobs(from.logprobs(i));
    if (num_top > 0) *out->add_top_logprobs() = from.top_logprobs(i);
    ++next_;
  }
  return absl::OkStatus();
}

}  // namespace baton
