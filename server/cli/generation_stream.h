// One generation, read to its end.
#ifndef BATON_SERVER_CLI_GENERATION_STREAM_H_
#define BATON_SERVER_CLI_GENERATION_STREAM_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/cli/token_timing.h"

namespace baton {

struct Generation {
  std::string text;
  std::vector<uint32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<v1::TopLogprobs> top_logprobs;  // One a token, if asked for.
  v1::PromptLogprobs prompt_logprobs;         // All of them, if asked for.
  v1::GenerateFinished finished;
  TokenTiming timing;
};

std::unique_ptr<v1::InferenceService::Stub> ConnectToRouter(
    const std::string& router);

// Blocks until the stream has ended; `on_text` gets each piece of text as it
// comes. What came before an error is in `*generation`.
grpc::Status StreamGeneration(
    v1::InferenceService::StubInterface& stub,
    const v1::GenerateRequest& request, absl::Duration timeout,
    const std::function<void(std::string_view)>& on_text,
    Generation* generation);

// "EOS", "LENGTH", ...
std::string FinishReasonName(v1::FinishReason reason);

// A few lines for people: latency, rate, why it ended, seed, usage, KV moved.
std::string SummaryText(const Generation& generation);
// The same and all the rest, for programs.
nlohmann::json SummaryJson(const Generation& generation);

}  // namespace baton

#endif  // BATON_SERVER_CLI_GENERATION_STREAM_H_
