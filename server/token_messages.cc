#include "server/token_messages.h"

#include <type_traits>
#include <utility>

#include "absl/time/time.h"
#include "base/logging.h"
#include "server/convert.h"
#include "server/edge/grpc_status.h"
#include "server/edge/request_gate.h"

namespace baton {
namespace {

// An id and a log-probability, and a message around them.
constexpr size_t kTokenBytes = 8;
constexpr size_t kMessageBytes = 64;

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
constexpr bool kIsPrefill = std::is_same_v<Response, v1::PrefillResponse>;

}  // namespace

template <typename Response>
Response KvHandleMessage(const KvHandle& handle) {
  Response response;
  if constexpr (kIsPrefill<Response>) {
    response.set_kv_handle(SerializeKvHandle(handle));
  } else {
    LOG(FATAL) << "a KV handle for a decode";
  }
  return response;
}

template <typename Response>
Response ProgressMessage(uint32_t computed_tokens) {
  Response response;
  if constexpr (kIsPrefill<Response>) {
    response.mutable_progress()->set_computed_tokens(computed_tokens);
  } else {
    LOG(FATAL) << "progress for a decode";
  }
  return response;
}

template <typename Response>
Response PromptLogprobsMessage(const ScoredTokens& tokens) {
  Response response;
  AddTokens(tokens, response.mutable_prompt_logprobs());
  return response;
}

template <typename Response>
Response TokensMessage(const SampleName& sample, const ScoredTokens& tokens) {
  Response response;
  v1::TokenChunk* const chunk = MutableChunk(&response);
  chunk->set_sample_index(sample.index);
  chunk->set_attempt(sample.attempt);
  AddTokens(tokens, chunk);
  return response;
}

template <typename Response>
Response EndMessage(const SampleName& sample, const GenerationOutcome& outcome,
                    const std::vector<LLMEngine*>& engines) {
  Response response;
  if constexpr (kIsPrefill<Response>) {
    FillEnd(outcome, response.mutable_released());
  } else {
    v1::DecodeFinished* const finished = response.mutable_finished();
    finished->set_sample_index(sample.index);
    finished->set_attempt(sample.attempt);
    FillEnd(outcome, finished);
    *finished->mutable_load() = LoadOf(engines);
  }
  return response;
}

template <typename Response>
absl::Status StatusForPeer(const absl::Status& status, bool is_cut) {
  if (absl::IsCancelled(status) && is_cut) return DrainingError();
  // The router asks the decode server what became of it.
  if (kIsPrefill<Response> && absl::IsAborted(status)) {
    return WithReason(status, "IMPORTER_LOST");
  }
  if (!absl::IsUnavailable(status)) return status;
  return WithReason(absl::UnavailableError("the worker's group is not whole"),
                    "GROUP_LOST");
}

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

#define BATON_INSTANTIATE(Response)                                       \
  template Response KvHandleMessage<Response>(const KvHandle&);           \
  template Response ProgressMessage<Response>(uint32_t);                  \
  template Response PromptLogprobsMessage<Response>(const ScoredTokens&); \
  template Response TokensMessage<Response>(const SampleName&,            \
                                            const ScoredTokens&);         \
  template Response EndMessage<Response>(const SampleName&,               \
                                         const GenerationOutcome&,        \
                                         const std::vector<LLMEngine*>&); \
  template absl::Status StatusForPeer<Response>(const absl::Status&, bool)
BATON_INSTANTIATE(v1::PrefillResponse);
BATON_INSTANTIATE(v1::DecodeResponse);
#undef BATON_INSTANTIATE

}  // namespace baton
