// The flags of a generation request, shared by `generate` and `chat`.
#ifndef BATON_SERVER_CLI_REQUEST_FLAGS_H_
#define BATON_SERVER_CLI_REQUEST_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/edge/config.h"

namespace baton {

// Where the router listens unless told otherwise, as baton-router has it.
inline constexpr char kDefaultRouter[] = "127.0.0.1:50051";

// What is absent comes from the model's generation_config.json. Ranges are the
// server's to judge: it names the field.
struct RequestOptions {
  std::string router = kDefaultRouter;
  absl::Duration timeout = absl::Minutes(10);
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;
  std::optional<float> min_p;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> n;  // With a flag of its own.
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;  // "ID:BIAS"
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> min_tokens;
  std::vector<std::string> stop;
  std::vector<std::string> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_string = false;
  std::optional<bool> skip_special_tokens;
  std::optional<uint32_t> stream_interval;
  std::optional<uint32_t> top_logprobs;
  bool logprobs_after_truncation = false;
  std::optional<uint32_t> prompt_logprobs_from;
  std::optional<std::string> cache_salt;
  bool cache_bypass = false;
};

// FieldError unless it has a port.
absl::Status ValidateConnection(const std::string& router);
// FieldError with this problem if log-probabilities were asked for.
absl::Status RefuseLogprobs(const RequestOptions& options,
                            const std::string& problem);

// The flag that sets this field of a GenerateRequest, if there is one:
// "stopping.stop_strings[1]" gives "--stop".
std::optional<std::string> FlagOfField(const std::string& field);

// Adds --router and --timeout.
void AddConnectionFlags(Flags& flags, std::string* router,
                        absl::Duration* timeout);
// Adds all of RequestOptions but n.
void AddRequestFlags(Flags& flags, RequestOptions* options);
void AddSamplesFlag(Flags& flags, std::optional<uint32_t>* n);

// All of `request` but its prompt.
absl::Status FillRequest(const RequestOptions& options,
                         v1::GenerateRequest* request);

// "17:-2.5".
absl::StatusOr<v1::LogitBias> ParseLogitBias(const std::string& text);

// "1,2,3" or "1 2 3".
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const std::string& text);

}  // namespace baton

#endif  // BATON_SERVER_CLI_REQUEST_FLAGS_H_
