#include "server/cli/request_flags.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace baton {

void AddConnectionFlags(Flags& flags, std::string* router,
                        absl::Duration* timeout) {
  flags.Group("Connection");
  flags.Add(router, {.name = "router",
                     .help = "The baton-router to ask, as host:port."});
  flags.Add(timeout, {.name = "timeout",
                      .help = "Deadline of a request.",
                      .min = 0.001,
                      .max = 86400});
}

void AddSamplesFlag(Flags& flags, std::optional<uint32_t>* n) {
  flags.Add(n, {.name = "n",
                .help = "Samples of a prompt, 1 to 128; it is computed once. "
                        "Absent: 1.",
                .min = 1,
                .max = 128});
}

absl::Status ValidateConnection(const std::string& router) {
  const size_t colon = router.rfind(':');
  if (colon != std::string::npos && colon + 1 < router.size()) {
    return absl::OkStatus();
  }
  return FieldError("router", "\"" + router + "\" has no port; write " +
                                  router.substr(0, colon) + ":50051");
}

absl::Status RefuseLogprobs(const RequestOptions& options,
                            const std::string& problem) {
  if (options.top_logprobs) return FieldError("top_logprobs", problem);
  if (options.logprobs_after_truncation) {
    return FieldError("logprobs_after_truncation", problem);
  }
  if (options.prompt_logprobs_from) {
    return FieldError("prompt_logprobs_from", problem);
  }
  return absl::OkStatus();
}

std::optional<std::string> FlagOfField(const std::string& field) {
  static constexpr std::pair<std::string_view, std::string_view> kOtherNames[] =
      {{"stopping.stop_strings", "--stop"},
       {"cache.salt", "--cache_salt"},
       {"cache.bypass", "--cache_bypass"},
       {"logprobs.top", "--top_logprobs"},
       {"logprobs.after_truncation", "--logprobs_after_truncation"},
       {"logprobs.prompt_from", "--prompt_logprobs_from"},
       {"prompt.token_ids.ids", "--token_ids"},
       {"prompt.text.text", "--prompt"}};
  const std::string whole = field.substr(0, field.find('['));
  for (const auto& [name, flag] : kOtherNames) {
    if (whole == name) return std::string(flag);
  }
  for (const std::string_view group : {"sampling.", "stopping.", "output."}) {
    if (whole.starts_with(group)) return "--" + whole.substr(group.size());
  }
  return std::nullopt;
}

namespace {

void AddPenaltyFlags(Flags& flags, RequestOptions* options) {
  flags.Add(&options->repetition_penalty,
            {.name = "repetition_penalty",
             .help = "0.01 to 100, of tokens in prompt or answer; 1 is off."});
  flags.Add(&options->presence_penalty,
            {.name = "presence_penalty",
             .help = "-2 to 2, off the logits of tokens in the answer."});
  flags.Add(&options->frequency_penalty,
            {.name = "frequency_penalty",
             .help = "-2 to 2, the same for each time they are in it."});
  flags.Add(&options->logit_bias,
            {.name = "logit_bias",
             .help = "Token ids and what to add to their logits, -100 to 100: "
                     "17:-2.5,42:100."});
}

void AddOutputFlags(Flags& flags, RequestOptions* options) {
  flags.Group("Output");
  flags.Add(&options->skip_special_tokens,
            {.name = "skip_special_tokens",
             .help = "Special tokens give no text. Absent: true."});
  flags.Add(&options->stream_interval,
            {.name = "stream_interval",
             .help = "Tokens of a message at least, 1 to 1024."});
  flags.Add(&options->top_logprobs,
            {.name = "top_logprobs",
             .help = "So many alternatives of each token, 0 to 20, are in the "
                     "JSON."});
  flags.Add(&options->logprobs_after_truncation,
            {.name = "logprobs_after_truncation",
             .help = "Log-probabilities after penalties, temperature and "
                     "truncation instead of the model's own."});
  flags.Add(&options->prompt_logprobs_from,
            {.name = "prompt_logprobs_from",
             .help = "The prompt's tokens from this index on are in the JSON "
                     "with their log-probabilities."});
}

void AddCacheFlags(Flags& flags, RequestOptions* options) {
  flags.Group("Prefix cache");
  flags.Add(&options->cache_salt,
            {.name = "cache_salt",
             .help = "Only requests with the same salt share the KV of what "
                     "their prompts begin with; at most 128 bytes."});
  flags.Add(&options->cache_bypass,
            {.name = "cache_bypass",
             .help = "Neither find anything in the prefix cache nor leave "
                     "anything there."});
}

void FillOutput(const RequestOptions& options, v1::GenerateRequest* request) {
  v1::OutputParams& output = *request->mutable_output();
  if (options.skip_special_tokens) {
    output.set_skip_special_tokens(*options.skip_special_tokens);
  }
  if (options.stream_interval) {
    output.set_stream_interval(*options.stream_interval);
  }
  v1::LogprobParams& logprobs = *request->mutable_logprobs();
  if (options.top_logprobs) logprobs.set_top(*options.top_logprobs);
  if (options.logprobs_after_truncation) logprobs.set_after_truncation(true);
  if (options.prompt_logprobs_from) {
    logprobs.set_prompt_from(*options.prompt_logprobs_from);
  }
}

absl::Status FillSampling(const RequestOptions& options,
                          v1::SamplingParams* sampling) {
  if (options.temperature) sampling->set_temperature(*options.temperature);
  if (options.top_p) sampling->set_top_p(*options.top_p);
  if (options.top_k) sampling->set_top_k(*options.top_k);
  if (options.min_p) sampling->set_min_p(*options.min_p);
  if (options.seed) sampling->set_seed(*options.seed);
  if (options.n) sampling->set_n(*options.n);
  if (options.repetition_penalty) {
    sampling->set_repetition_penalty(*options.repetition_penalty);
  }
  if (options.presence_penalty) {
    sampling->set_presence_penalty(*options.presence_penalty);
  }
  if (options.frequency_penalty) {
    sampling->set_frequency_penalty(*options.frequency_penalty);
  }
  for (const std::string& text : options.logit_bias) {
    ASSIGN_OR_RETURN(*sampling->add_logit_bias(), ParseLogitBias(text));
  }
  return absl::OkStatus();
}

}  // namespace

void AddRequestFlags(Flags& flags, RequestOptions* options) {
  AddConnectionFlags(flags, &options->router, &options->timeout);
  flags.Group("Sampling (absent: the model's generation_config.json)");
  flags.Add(&options->temperature,
            {.name = "temperature", .help = "0 is greedy; up to 100."});
  flags.Add(&options->top_p,
            {.name = "top_p", .help = "Above 0 and at most 1; 1 is off."});
  flags.Add(&options->top_k, {.name = "top_k", .help = "0 is off."});
  flags.Add(&options->min_p, {.name = "min_p", .help = "0 to 1; 0 is off."});
  flags.Add(&options->seed,
            {.name = "seed",
             .help = "The same seed gives the same tokens. Absent: drawn by "
                     "the router, and told at the end."});
  AddPenaltyFlags(flags, options);
  flags.Group("Stopping");
  flags.Add(&options->max_tokens,
            {.name = "max_tokens",
             .help = "Tokens to generate at most. Absent: up to the end of the "
                     "context."});
  flags.Add(&options->min_tokens,
            {.name = "min_tokens",
             .help = "Before so many tokens nothing but --max_tokens ends the "
                     "text."});
  flags.Add(&options->stop,
            {.name = "stop",
             .help = "Strings that end the text, spaces and all. A comma in "
                     "one is written \\,. May be repeated.",
             .exact_items = true});
  flags.Add(&options->stop_token_ids,
            {.name = "stop_token_ids", .help = "Token ids that end it."});
  flags.Add(&options->ignore_eos,
            {.name = "ignore_eos", .help = "Go on after the end of text."});
  flags.Add(&options->include_stop_string,
            {.name = "include_stop_string",
             .help = "The string that ended the text is a part of it."});
  AddCacheFlags(flags, options);
  AddOutputFlags(flags, options);
}

absl::StatusOr<v1::LogitBias> ParseLogitBias(const std::string& text) {
  const size_t colon = text.find(':');
  uint32_t id = 0;
  float bias = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(text.substr(0, colon), &id) ||
      !absl::SimpleAtof(text.substr(colon + 1), &bias)) {
    return FieldError("logit_bias",
                      "\"" + text + "\" is no bias; write 17:-2.5");
  }
  v1::LogitBias entry;
  entry.set_token_id(id);
  entry.set_bias(bias);
  return entry;
}

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const std::string& text) {
  std::vector<uint32_t> ids;
  for (const auto word :
       absl::StrSplit(text, absl::ByAnyChar(", \t\n"), absl::SkipEmpty())) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return FieldError("token_ids", "\"" + std::string(word) +
                                         "\" is no token id; write 1,2,3");
    }
    ids.push_back(id);
  }
  return ids;
}

absl::Status FillRequest(const RequestOptions& options,
                         v1::GenerateRequest* request) {
  RETURN_IF_ERROR(FillSampling(options, request->mutable_sampling()));
  FillOutput(options, request);
  v1::CacheParams& cache = *request->mutable_cache();
  if (options.cache_salt) cache.set_salt(*options.cache_salt);
  if (options.cache_bypass) cache.set_bypass(true);
  v1::StoppingParams& stopping = *request->mutable_stopping();
  if (options.max_tokens) stopping.set_max_tokens(*options.max_tokens);
  if (options.min_tokens) stopping.set_min_tokens(*options.min_tokens);
  if (options.ignore_eos) stopping.set_ignore_eos(true);
  if (options.include_stop_string) stopping.set_include_stop_string(true);
  for (const std::string& stop : options.stop) stopping.add_stop_strings(stop);
  for (const std::string& text : options.stop_token_ids) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ParseTokenIds(text));
    for (const uint32_t id : ids) stopping.add_stop_token_ids(id);
  }
  return absl::OkStatus();
}

}  // namespace baton
