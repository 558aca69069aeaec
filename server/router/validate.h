// From a client's GenerateRequest to a plan that can be carried out.
//
// Every field is checked, and the first bad one named, before anything is
// allocated in proportion to it: ValidateGenerateRequest looks at the message
// alone; then the caller tokenises; then MakePlan fills in the defaults and
// checks what only the tokens tell. Pure.
#ifndef BATON_SERVER_ROUTER_VALIDATE_H_
#define BATON_SERVER_ROUTER_VALIDATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

namespace v1 {
class GenerateRequest;
class Prompt;
}  // namespace v1

inline constexpr int kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;
inline constexpr int kMaxStopTokenIds = 64;
inline constexpr size_t kMaxClientRequestIdBytes = 128;
inline constexpr int kMaxChatMessages = 4096;
// Below it a worker could not divide by it. 0 is greedy.
inline constexpr float kMinTemperature = 1e-30f;
inline constexpr float kMaxTemperature = 100;
inline constexpr uint32_t kMaxTopK = 0x7fffffff;
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxRepetitionPenalty = 100;
inline constexpr float kMaxPenalty = 2;  // Of either sign, as kMaxLogitBias.
inline constexpr float kMaxLogitBias = 100;
inline constexpr int kMaxLogitBiases = 1024;
// Of all samples together: what a request may make the router keep.
inline constexpr uint64_t kMaxGeneratedTokens = uint64_t{1} << 22;
inline constexpr uint32_t kMaxTopLogprobs = 20;
inline constexpr uint32_t kMaxStreamInterval = 1024;
inline constexpr size_t kMaxCacheSaltBytes = 128;

// Sampling with every default filled in but the seed.
struct SamplingPlan {
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  uint32_t top_k = 0;
  std::optional<uint64_t> seed;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<uint32_t, float>> logit_bias = {};
};

// What the router knows of the model it serves.
struct ModelBounds {
  uint32_t vocab_size = 0;
  uint32_t max_context_tokens = 0;  // Prompt and generated tokens together.
  size_t longest_token_bytes = 1;   // No token spells more bytes of text.
  SamplingPlan sampling_defaults;   // From generation_config.json.
  std::vector<uint32_t> eos_token_ids;
};

struct GenerationPlan {
  std::vector<uint32_t> prompt_ids;
  SamplingPlan sampling;
  uint32_t num_samples = 1;
  uint32_t max_tokens = 1;  // Has room in the context after the prompt.
  uint32_t min_tokens = 0;  // At most max_tokens.
  std::vector<std::string> stop_strings;
  std::vector<uint32_t> stop_token_ids;  // The EOS ids first, no id twice.
  uint32_t num_eos_token_ids = 0;        // 0 with ignore_eos.
  bool include_stop_string = false;
  uint32_t num_top_logprobs = 0;
  bool logprobs_after_truncation = false;
  std::optional<uint32_t> prompt_logprobs_from;  // An index of the prompt.
  bool skip_special_tokens = true;
  uint32_t stream_interval = 1;
  std::string cache_salt;
  bool bypass_cache = false;
  std::string client_request_id;
};

// INVALID_ARGUMENT naming the field (FieldError), or OK.
absl::Status ValidateGenerateRequest(const v1::GenerateRequest& request,
                                     const ModelBounds& model);

// The part of it that concerns a prompt; fields are named from `prompt` on.
absl::Status ValidatePrompt(const v1::Prompt& prompt, const ModelBounds& model);

// `prompt_ids` are the request's ids, or what its text or chat came to.
// INVALID_ARGUMENT naming `prompt` if there are none, or no room after them,
// `logprobs.prompt_from` if it is none of theirs, and `sampling.n` if so many
// samples of max_tokens are too much. REQUIRES:
// ValidateGenerateRequest said OK.
absl::StatusOr<GenerationPlan> MakePlan(const v1::GenerateRequest& request,
                                        std::vector<uint32_t> prompt_ids,
                                        const ModelBounds& model);

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_VALIDATE_H_
