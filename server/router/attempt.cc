#include "server/router/attempt.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

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

}  // namespace

void Attempt::MoveTo(AttemptPhase to) {
  CHECK(IsLegalTransition(phase_, to))
      << static_cast<int>(phase_) << " to " << static_cast<int>(to);
  phase_ = to;
}

v1::WorkerRequest MakeWorkerRequest(const GenerationPlan& plan,
                                    const Attempt& attempt,
                                    std::span<const uint32_t> resumed) {
  CHECK_EQ(resumed.size(), attempt.goal.num_resumed);
  // A worker makes a token at least.
  const bool wants_tokens = attempt.goal.num_samples > 0;
  v1::WorkerRequest request;
  request.mutable_id()->set_counter(attempt.id_counter);
  request.set_sample_index(attempt.goal.first_sample);
  request.set_attempt(attempt.number);
  request.mutable_token_ids()->Add(plan.prompt_ids.begin(),
                                   plan.prompt_ids.end());
  request.mutable_token_ids()->Add(resumed.begin(), resumed.end());
  request.set_original_prompt_tokens(
      static_cast<uint32_t>(plan.prompt_ids.size()));
  FillSampling(plan, request.mutable_sampling());
  if (attempt.goal.prompt_from.has_value()) {
    request.set_prompt_logprobs_from(*attempt.goal.prompt_from);
  }
  request.set_max_tokens(wants_tokens ? plan.max_tokens : 1);
  request.set_min_tokens(wants_tokens ? plan.min_tokens : 0);
  request.mutable_stop_token_ids()->Add(plan.stop_token_ids.begin(),
                                        plan.stop_token_ids.end());
  request.set_num_eos_token_ids(plan.num_eos_token_ids);
  request.set_fingerprint(attempt.route.fingerprint);
  request.set_cache_salt(plan.cache_salt);
  request.set_bypass_prefix_cache(plan.bypass_cache);
  return request;
}

}  // namespace baton
