#include "engine/generation_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace baton {
namespace {

constexpr float kMaxTemperature = 100;
// Its inverse, times any logit of a model, is still finite.
constexpr float kMinTemperature = 1e-30f;
constexpr float kMinRepetitionPenalty = 0.01f;
constexpr float kMaxRepetitionPenalty = 100;
constexpr float kMaxPenalty = 2;
constexpr float kMaxBias = 100;

// False for NaN, infinities and subnormals, which no kernel should meet.
bool InRange(float value, float low, float high) {
  return value >= low && value <= high &&
         std::fpclassify(value) != FP_SUBNORMAL;
}

absl::Status ValidatePrompt(const GenerationRequest& request,
                            const RequestLimits& limits) {
  if (request.token_ids.empty()) return FieldError("prompt", "is empty");
  if (request.token_ids.size() >= limits.max_context_tokens) {
    return FieldError(
        "prompt",
        absl::StrCat(request.token_ids.size(),
                     " tokens leave no room for an answer in a context of ",
                     limits.max_context_tokens,
                     limits.context_limited_by_pool
                         ? " (as much as --kv_cache_bytes holds)"
                         : ""));
  }
  for (uint32_t token : request.token_ids) {
    if (token >= limits.vocab_size) {
      return FieldError("prompt",
                        absl::StrCat("token id ", token,
                                     " is not below the vocabulary's size, ",
                                     limits.vocab_size));
    }
  }
  if (request.original_prompt_tokens == 0 ||
      request.original_prompt_tokens > request.token_ids.size()) {
    return FieldError("original_prompt_tokens",
                      "must be 1 .. the number of token_ids");
  }
  return absl::OkStatus();
}

absl::Status ValidateSampling(const SamplingParams& sampling) {
  if (sampling.temperature != 0 &&
      !InRange(sampling.temperature, kMinTemperature, kMaxTemperature)) {
    return FieldError("sampling.temperature", "must be 0, or 1e-30 .. 100");
  }
  if (!InRange(sampling.top_p, 0, 1) || sampling.top_p == 0) {
    return FieldError("sampling.top_p", "must be above 0 and at most 1");
  }
  if (!InRange(sampling.min_p, 0, 1)) {
    return FieldError("sampling.min_p", "must be 0 .. 1");
  }
  if (sampling.top_k > 0x7fffffff) {
    return FieldError("sampling.top_k", "must be 0 .. 2147483647");
  }
  return absl::OkStatus();
}

absl::Status ValidatePenalties(const SamplingParams& sampling) {
  if (!InRange(sampling.repetition_penalty, kMinRepetitionPenalty,
               kMaxRepetitionPenalty)) {
    return FieldError("sampling.repetition_penalty", "must be 0.01 .. 100");
  }
  if (!InRange(sampling.presence_penalty, -kMaxPenalty, kMaxPenalty)) {
    return FieldError("sampling.presence_penalty", "must be -2 .. 2");
  }
  if (!InRange(sampling.frequency_penalty, -kMaxPenalty, kMaxPenalty)) {
    return FieldError("sampling.frequency_penalty", "must be -2 .. 2");
  }
  return absl::OkStatus();
}

absl::Status ValidateLogitBias(const std::vector<LogitBias>& biases,
                               const RequestLimits& limits) {
  if (biases.size() > kMaxLogitBiases) {
    return FieldError("sampling.logit_bias",
                      absl::StrCat("at most ", kMaxLogitBiases, " ids"));
  }
  std::vector<uint32_t> ids;
  for (const LogitBias& bias : biases) {
    if (bias.token_id >= limits.vocab_size) {
      return FieldError("sampling.logit_bias",
                        absl::StrCat("id ", bias.token_id,
                                     " is not below the vocabulary's size, ",
                                     limits.vocab_size));
    }
    if (!InRange(bias.bias, -kMaxBias, kMaxBias)) {
      return FieldError("sampling.logit_bias", "must be -100 .. 100");
    }
    ids.push_back(bias.token_id);
  }
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) {
    return FieldError("sampling.logit_bias", "names an id twice");
  }
  return absl::OkStatus();
}

absl::Status ValidateLogprobs(const GenerationRequest& request) {
  if (request.sampling.num_top_logprobs > kMaxTopLogprobs) {
    return FieldError("logprobs.top",
                      absl::StrCat("must be 0 .. ", kMaxTopLogprobs));
  }
  if (request.prompt_logprobs_from.value_or(0) >=
      request.original_prompt_tokens) {
    return FieldError("logprobs.prompt_from",
                      "must be below the number of the prompt's tokens");
  }
  return absl::OkStatus();
}

absl::Status ValidateStopping(const GenerationRequest& request,
                              const RequestLimits& limits) {
  const size_t resumed =
      request.token_ids.size() - request.original_prompt_tokens;
  if (request.max_tokens <= resumed) {
    return FieldError("stopping.max_tokens",
                      absl::StrCat("must be above the ", resumed,
                                   " tokens that are there already"));
  }
  if (request.min_tokens > request.max_tokens) {
    return FieldError("stopping.min_tokens", "is above max_tokens");
  }
  if (request.stop_token_ids.size() > limits.max_stop_token_ids) {
    return FieldError(
        "stopping.stop_token_ids",
        absl::StrCat("at most ", limits.max_stop_token_ids, " ids"));
  }
  for (uint32_t token : request.stop_token_ids) {
    if (token >= limits.vocab_size) {
      return FieldError(
          "stopping.stop_token_ids",
          absl::StrCat("id ", token, " is not below the vocabulary's size, ",
                       limits.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSamples(const GenerationRequest& request,
                             const RequestLimits& limits) {
  if (request.num_samples == 0 || request.num_samples > limits.max_samples) {
    return FieldError("num_samples",
                      absl::StrCat("must be 1 .. ", limits.max_samples));
  }
  if (request.num_samples > 1 && request.mode == RequestMode::kPrefill) {
    return FieldError("num_samples", "must be 1 in a prefill");
  }
  if (request.sample_index >
      std::numeric_limits<uint32_t>::max() - request.num_samples) {
    return FieldError("sample_index", "is too large");
  }
  return absl::OkStatus();
}

absl::Status ValidateCache(const GenerationRequest& request) {
  if (request.cache_salt.size() > kMaxCacheSaltBytes) {
    return FieldError("cache.salt",
                      absl::StrCat("at most ", kMaxCacheSaltBytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRequest(const GenerationRequest& request,
                             const RequestLimits& limits) {
  RETURN_IF_ERROR(ValidatePrompt(request, limits));
  RETURN_IF_ERROR(ValidateSamples(request, limits));
  RETURN_IF_ERROR(ValidateSampling(request.sampling));
  RETURN_IF_ERROR(ValidatePenalties(request.sampling));
  RETURN_IF_ERROR(ValidateLogitBias(request.sampling.logit_bias, limits));
  RETURN_IF_ERROR(ValidateLogprobs(request));
  RETURN_IF_ERROR(ValidateCache(request));
  return ValidateStopping(request, limits);
}

}  // namespace baton
