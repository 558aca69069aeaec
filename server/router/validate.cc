#include "server/router/validate.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/edge/request_size.h"

namespace baton {
namespace {

// The bound that a bare prompt must keep: one token at least is generated.
absl::Status CheckPromptTokens(size_t num_tokens, const ModelBounds& model) {
  if (num_tokens == 0) return FieldError("prompt", "has no tokens");
  if (num_tokens >= model.max_context_tokens) {
    return FieldError(
        "prompt", absl::StrCat("has ", num_tokens, " tokens; the context of ",
                               model.max_context_tokens,
                               " must have room for one more than the prompt"));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenId(std::string_view field, int index, uint32_t id,
                          const ModelBounds& model) {
  if (id < model.vocab_size) return absl::OkStatus();
  return FieldError(
      absl::StrCat(absl::string_view(field.data(), field.size()), "[", index,
                   "]"),
      absl::StrCat(id, " is not in the vocabulary of ", model.vocab_size));
}

absl::Status CheckTextBytes(std::string_view field, size_t bytes,
                            const ModelBounds& model) {
  const size_t most =
      size_t{model.max_context_tokens} * model.longest_token_bytes;
  if (bytes <= most) return absl::OkStatus();
  return FieldError(field, absl::StrCat("has ", bytes, " bytes; more than ",
                                        most, " cannot fit into a context of ",
                                        model.max_context_tokens, " tokens"));
}

absl::Status ValidateTokenIds(const v1::TokenIds& tokens,
                              const ModelBounds& model) {
  RETURN_IF_ERROR(
      CheckPromptTokens(static_cast<size_t>(tokens.ids_size()), model));
  for (int i = 0; i < tokens.ids_size(); ++i) {
    RETURN_IF_ERROR(
        CheckTokenId("prompt.token_ids.ids", i, tokens.ids(i), model));
  }
  return absl::OkStatus();
}

absl::Status ValidateChat(const v1::ChatPrompt& chat,
                          const ModelBounds& model) {
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};
  const auto num_messages = static_cast<uint32_t>(chat.messages_size());
  if (num_messages == 0) {
    return FieldError("prompt.chat.messages", "is empty");
  }
  if (num_messages > kMaxChatMessages) {
    return FieldError(
        "prompt.chat.messages",
        absl::StrCat("has more than ", kMaxChatMessages, " entries"));
  }
  if (num_messages >= model.max_context_tokens) {
    return FieldError(
        "prompt.chat.messages",
        absl::StrCat("has ", num_messages, " entries; a context of ",
                     model.max_context_tokens, " tokens cannot hold them"));
  }
  size_t bytes = 0;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    if (std::find(std::begin(kRoles), std::end(kRoles), message.role()) ==
        std::end(kRoles)) {
      return FieldError(absl::StrCat("prompt.chat.messages[", i, "].role"),
                        "must be system, user, assistant or tool");
    }
    bytes += message.content().size();
  }
  return CheckTextBytes("prompt.chat.messages", bytes, model);
}

// Subnormal numbers are refused with the rest: their inverse is infinite.
bool IsZeroOrNormal(float value) { return value == 0 || std::isnormal(value); }

absl::Status ValidateSampling(const v1::SamplingParams& sampling) {
  const float temperature = sampling.temperature();
  const bool in_range =
      temperature >= kMinTemperature && temperature <= kMaxTemperature;
  if (temperature != 0 && !in_range) {
    return FieldError("sampling.temperature", "must be 0, or 1e-30 .. 100");
  }
  const float top_p = sampling.top_p();
  if (sampling.has_top_p() &&
      (!std::isnormal(top_p) || top_p <= 0 || top_p > 1)) {
    return FieldError("sampling.top_p", "must lie in (0, 1]");
  }
  const float min_p = sampling.min_p();
  if (!IsZeroOrNormal(min_p) || min_p < 0 || min_p > 1) {
    return FieldError("sampling.min_p", "must lie in [0, 1]");
  }
  if (sampling.top_k() > kMaxTopK) {
    return FieldError("sampling.top_k", "must lie in 0 .. 2^31-1");
  }
  if (sampling.has_n() && (sampling.n() == 0 || sampling.n() > kMaxSamples)) {
    return FieldError("sampling.n",
                      absl::StrCat("must lie in 1 .. ", kMaxSamples));
  }
  return absl::OkStatus();
}

// Within [low, high], and no number that a kernel should not meet.
bool InRange(float value, float low, float high) {
  return IsZeroOrNormal(value) && value >= low && value <= high;
}

absl::Status ValidatePenalties(const v1::SamplingParams& sampling) {
  if (sampling.has_repetition_penalty() &&
      !InRange(sampling.repetition_penalty(), kMinRepetitionPenalty,
               kMaxRepetitionPenalty)) {
    return FieldError("sampling.repetition_penalty", "must lie in 0.01 .. 100");
  }
  if (!InRange(sampling.presence_penalty(), -kMaxPenalty, kMaxPenalty)) {
    return FieldError("sampling.presence_penalty", "must lie in -2 .. 2");
  }
  if (!InRange(sampling.frequency_penalty(), -kMaxPenalty, kMaxPenalty)) {
    return FieldError("sampling.frequency_penalty", "must lie in -2 .. 2");
  }
  return absl::OkStatus();
}

absl::Status ValidateLogitBias(const v1::SamplingParams& sampling,
                               const ModelBounds& model) {
  if (sampling.logit_bias_size() > kMaxLogitBiases) {
    return FieldError(
        "sampling.logit_bias",
        absl::StrCat("has more than ", kMaxLogitBiases, " entries"));
  }
  std::vector<uint32_t> ids;
  for (int i = 0; i < sampling.logit_bias_size(); ++i) {
    const v1::LogitBias& bias = sampling.logit_bias(i);
    RETURN_IF_ERROR(
        CheckTokenId("sampling.logit_bias", i, bias.token_id(), model));
    if (!InRange(bias.bias(), -kMaxLogitBias, kMaxLogitBias)) {
      return FieldError(absl::StrCat("sampling.logit_bias[", i, "]"),
                        "must have a bias in -100 .. 100");
    }
    ids.push_back(bias.token_id());
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) {
    return FieldError("sampling.logit_bias", "names a token twice");
  }
  return absl::OkStatus();
}

absl::Status ValidateOutput(const v1::GenerateRequest& request,
                            const ModelBounds& model) {
  if (request.logprobs().top() > kMaxTopLogprobs) {
    return FieldError("logprobs.top",
                      absl::StrCat("must lie in 0 .. ", kMaxTopLogprobs));
  }
  if (request.logprobs().prompt_from() >= model.max_context_tokens) {
    return FieldError("logprobs.prompt_from", "is behind any prompt's end");
  }
  const v1::OutputParams& output = request.output();
  if (output.has_stream_interval() &&
      (output.stream_interval() == 0 ||
       output.stream_interval() > kMaxStreamInterval)) {
    return FieldError("output.stream_interval",
                      absl::StrCat("must lie in 1 .. ", kMaxStreamInterval));
  }
  if (request.cache().salt().size() > kMaxCacheSaltBytes) {
    return FieldError("cache.salt", absl::StrCat("has more than ",
                                                 kMaxCacheSaltBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStopping(const v1::StoppingParams& stopping,
                              const ModelBounds& model) {
  if (stopping.has_max_tokens() &&
      (stopping.max_tokens() == 0 ||
       stopping.max_tokens() > model.max_context_tokens)) {
    return FieldError("stopping.max_tokens",
                      absl::StrCat("must lie in 1 .. ",
                                   model.max_context_tokens, " (the context)"));
  }
  const uint32_t most = stopping.has_max_tokens() ? stopping.max_tokens()
                                                  : model.max_context_tokens;
  if (stopping.min_tokens() > most) {
    return FieldError("stopping.min_tokens",
                      absl::StrCat("must lie in 0 .. ", most, " (max_tokens)"));
  }
  if (stopping.stop_strings_size() > kMaxStopStrings) {
    return FieldError(
        "stopping.stop_strings",
        absl::StrCat("has more than ", kMaxStopStrings, " entries"));
  }
  for (int i = 0; i < stopping.stop_strings_size(); ++i) {
    const size_t bytes = stopping.stop_strings(i).size();
    if (bytes >= 1 && bytes <= kMaxStopStringBytes) continue;
    return FieldError(absl::StrCat("stopping.stop_strings[", i, "]"),
                      absl::StrCat("has ", bytes, " bytes; must have 1 .. ",
                                   kMaxStopStringBytes));
  }
  if (stopping.stop_token_ids_size() > kMaxStopTokenIds) {
    return FieldError(
        "stopping.stop_token_ids",
        absl::StrCat("has more than ", kMaxStopTokenIds, " entries"));
  }
  for (int i = 0; i < stopping.stop_token_ids_size(); ++i) {
    RETURN_IF_ERROR(CheckTokenId("stopping.stop_token_ids", i,
                                 stopping.stop_token_ids(i), model));
  }
  return absl::OkStatus();
}

void AddUnlessThere(uint32_t id, std::vector<uint32_t>* ids) {
  if (std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
}

SamplingPlan FillSampling(const v1::SamplingParams& asked,
                          const SamplingPlan& defaults) {
  SamplingPlan plan = defaults;
  if (asked.has_temperature()) plan.temperature = asked.temperature();
  if (asked.has_top_p()) plan.top_p = asked.top_p();
  if (asked.has_min_p()) plan.min_p = asked.min_p();
  if (asked.has_top_k()) plan.top_k = asked.top_k();
  if (asked.has_seed()) plan.seed = asked.seed();
  if (asked.has_repetition_penalty()) {
    plan.repetition_penalty = asked.repetition_penalty();
  }
  if (asked.has_presence_penalty()) {
    plan.presence_penalty = asked.presence_penalty();
  }
  if (asked.has_frequency_penalty()) {
    plan.frequency_penalty = asked.frequency_penalty();
  }
  for (const v1::LogitBias& bias : asked.logit_bias()) {
    plan.logit_bias.emplace_back(bias.token_id(), bias.bias());
  }
  // -0 is in range, and is greedy as 0 is.
  if (plan.temperature == 0) plan.temperature = 0;
  return plan;
}

void FillOutput(const v1::GenerateRequest& request, GenerationPlan* plan) {
  const v1::LogprobParams& logprobs = request.logprobs();
  plan->num_top_logprobs = logprobs.top();
  plan->logprobs_after_truncation = logprobs.after_truncation();
  if (logprobs.has_prompt_from()) {
    plan->prompt_logprobs_from = logprobs.prompt_from();
  }
  const v1::OutputParams& output = request.output();
  if (output.has_skip_special_tokens()) {
    plan->skip_special_tokens = output.skip_special_tokens();
  }
  if (output.has_stream_interval()) {
    plan->stream_interval = output.stream_interval();
  }
  plan->cache_salt = request.cache().salt();
  plan->bypass_cache = request.cache().bypass();
}

}  // namespace

absl::Status ValidateGenerateRequest(const v1::GenerateRequest& request,
                                     const ModelBounds& model) {
  if (request.client_request_id().size() > kMaxClientRequestIdBytes) {
    return FieldError(
        "client_request_id",
        absl::StrCat("has more than ", kMaxClientRequestIdBytes, " bytes"));
  }
  RETURN_IF_ERROR(ValidateSampling(request.sampling()));
  RETURN_IF_ERROR(ValidatePenalties(request.sampling()));
  RETURN_IF_ERROR(ValidateLogitBias(request.sampling(), model));
  RETURN_IF_ERROR(ValidateStopping(request.stopping(), model));
  RETURN_IF_ERROR(ValidateOutput(request, model));
  return ValidatePrompt(request.prompt(), model);
}

absl::Status ValidatePrompt(const v1::Prompt& prompt,
                            const ModelBounds& model) {
  switch (prompt.prompt_case()) {
    case v1::Prompt::kTokenIds:
      return ValidateTokenIds(prompt.token_ids(), model);
    case v1::Prompt::kText:
      return CheckTextBytes("prompt.text.text", prompt.text().text().size(),
                            model);
    case v1::Prompt::kChat:
      return ValidateChat(prompt.chat(), model);
    case v1::Prompt::PROMPT_NOT_SET:
      break;
  }
  return FieldError("prompt", "must be token_ids, text or chat");
}

absl::StatusOr<GenerationPlan> MakePlan(const v1::GenerateRequest& request,
                                        std::vector<uint32_t> prompt_ids,
                                        const ModelBounds& model) {
  RETURN_IF_ERROR(CheckPromptTokens(prompt_ids.size(), model));
  GenerationPlan plan;
  const uint32_t room =
      model.max_context_tokens - static_cast<uint32_t>(prompt_ids.size());
  plan.prompt_ids = std::move(prompt_ids);
  plan.sampling = FillSampling(request.sampling(), model.sampling_defaults);
  const v1::StoppingParams& stopping = request.stopping();
  plan.max_tokens =
      stopping.has_max_tokens() ? std::min(stopping.max_tokens(), room) : room;
  plan.num_samples = request.sampling().has_n() ? request.sampling().n() : 1;
  if (plan.num_samples > 1 &&
      uint64_t{plan.num_samples} * plan.max_tokens > kMaxGeneratedTokens) {
    return FieldError(
        "sampling.n",
        absl::StrCat(plan.num_samples, " samples of up to ", plan.max_tokens,
                     " tokens are more than ", kMaxGeneratedTokens,
                     " in all; ask for fewer, or set stopping.max_tokens"));
  }
  plan.min_tokens = std::min(stopping.min_tokens(), plan.max_tokens);
  plan.include_stop_string = stopping.include_stop_string();
  plan.stop_strings.assign(stopping.stop_strings().begin(),
                           stopping.stop_strings().end());
  if (!stopping.ignore_eos()) plan.stop_token_ids = model.eos_token_ids;
  plan.num_eos_token_ids = static_cast<uint32_t>(plan.stop_token_ids.size());
  for (uint32_t id : stopping.stop_token_ids()) {
    AddUnlessThere(id, &plan.stop_token_ids);
  }
  FillOutput(request, &plan);
  if (plan.prompt_logprobs_from.value_or(0) >= plan.prompt_ids.size()) {
    return FieldError("logprobs.prompt_from",
                      absl::StrCat("must be below the prompt's ",
                                   plan.prompt_ids.size(), " tokens"));
  }
  plan.client_request_id = request.client_request_id();
  return plan;
}

}  // namespace baton
