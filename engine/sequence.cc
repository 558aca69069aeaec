#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace baton {

std::ostream& operator<<(std::ostream& out, SequencePhase phase) {
  static constexpr const char* kNames[kNumSequencePhases] = {
      "waiting",  "importing_kv", "prefilling", "decoding",
      "exported", "ending",       "finished"};
  return out << kNames[static_cast<int>(phase)];
}

SequenceMetadata::SequenceMetadata(GenerationRequest from, TokenSink* to,
                                   absl::Time now)
    : request(std::move(from)),
      sink(to),
      submit_time(now),
      num_tokens_at_submit(static_cast<uint32_t>(request.token_ids.size())),
      tokens(std::move(request.token_ids)),
      next_prompt_logprob(request.original_prompt_tokens) {
  if (request.prompt_logprobs_from.has_value() && !imports()) {
    next_prompt_logprob = std::max(*request.prompt_logprobs_from, 1u);
  }
}

void SequenceMetadata::SetPhase(SequencePhase to) {
  CHECK(IsLegalTransition(phase_, to))
      << "request " << request.id << " from " << phase_ << " to " << to;
  VLOG(1) << "request " << request.id << " sample " << request.sample_index
          << " phase " << to;
  phase_ = to;
}

std::optional<FinishReason> FinishReasonOf(const SequenceMetadata& sequence) {
  const std::vector<uint32_t>& stops = sequence.request.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), sequence.tokens.back()) !=
      stops.end()) {
    return FinishReason::kStopToken;
  }
  if (sequence.num_tokens() >= sequence.max_total_tokens) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

void TellFinished(const SequenceMetadata& sequence, const absl::Status& status,
                  absl::Time now) {
  GenerationOutcome outcome;
  outcome.status = status;
  outcome.reason = FinishReasonOf(sequence).value_or(FinishReason::kLength);
  outcome.ended_in = sequence.ended_in;
  outcome.prompt_tokens = sequence.request.original_prompt_tokens;
  outcome.cached_tokens = sequence.cached_tokens;
  outcome.decode_cached_tokens = sequence.decode_cached_tokens;
  outcome.output_tokens = sequence.output_tokens();
  outcome.queue_time =
      std::min(sequence.first_admitted, now) - sequence.submit_time;
  outcome.prefill_time = sequence.prefill_time;
  outcome.transfer_time = sequence.transfer_time;
  outcome.transfer_bytes = sequence.transfer_bytes;
  sequence.sink->OnFinished(outcome);
}

}  // namespace baton
