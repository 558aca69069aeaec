#include "server/cli/request_flags.h"

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
  flags.Group("Stopping");
  flags.Add(&options->max_tokens,
            {.name = "max_tokens",
             .help = "Tokens to generate at most. Absent: up to the end of the "
                     "context."});
  flags.Add(&options->stop,
            {.name = "stop", .help = "Strings that end the text."});
  flags.Add(&options->stop_token_ids,
            {.name = "stop_token_ids", .help = "Token ids that end it."});
  flags.Add(&options->ignore_eos,
            {.name = "ignore_eos", .help = "Go on after the end of text."});
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
  v1::SamplingParams& sampling = *request->mutable_sampling();
  if (options.temperature) sampling.set_temperature(*options.temperature);
  if (options.top_p) sampling.set_top_p(*options.top_p);
  if (options.top_k) sampling.set_top_k(*options.top_k);
  if (options.min_p) sampling.set_min_p(*options.min_p);
  if (options.seed) sampling.set_seed(*options.seed);
  v1::StoppingParams& stopping = *request->mutable_stopping();
  if (options.max_tokens) stopping.set_max_tokens(*options.max_tokens);
  if (options.ignore_eos) stopping.set_ignore_eos(true);
  for (const std::string& stop : options.stop) stopping.add_stop_strings(stop);
  for (const std::string& text : options.stop_token_ids) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ParseTokenIds(text));
    for (const uint32_t id : ids) stopping.add_stop_token_ids(id);
  }
  return absl::OkStatus();
}

}  // namespace baton
