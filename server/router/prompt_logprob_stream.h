// The prompt's log-probabilities, from the workers' messages to the client's.
#ifndef BATON_SERVER_ROUTER_PROMPT_LOGPROB_STREAM_H_
#define BATON_SERVER_ROUTER_PROMPT_LOGPROB_STREAM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/router/validate.h"

namespace baton {

namespace v1 {
class PromptLogprobs;
}  // namespace v1

// Makes one stream of what several attempts send: each token once and in order.
// Pure. Thread-compatible.
class PromptLogprobStream final {
 public:
  // The plan is borrowed and outlives this.
  explicit PromptLogprobStream(const GenerationPlan* plan);

  // Appends the new tokens to `*out`. Known ones and those that nobody asked
  // for are dropped; a gap and a token that is not the prompt's are INTERNAL.
  absl::Status Append(const v1::PromptLogprobs& from, v1::PromptLogprobs* out);

  // The token that Append waits for: its index in the prompt.
  uint32_t next() const { return static_cast<uint32_t>(next_); }
  // All that were asked for have been passed on.
  bool complete() const { return next_ == plan_->prompt_ids.size(); }

 private:
  const GenerationPlan* const plan_;
  uint64_t next_;  // Index in the prompt.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_PROMPT_LOGPROB_STREAM_H_
