// One generation, of one or several samples, read to its end.
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

struct GeneratedSample {
  std::string text;
  std::vector<uint32_t> token_ids;
  std::vector<float> logprobs;
  std::vector<v1::TopLogprobs> top_logprobs;  // One a token, if asked for.
  v1::GenerateFinished finished;
};

struct Generation {
  std::vector<GeneratedSample> samples;  // At least one.
  v1::PromptLogprobs prompt_logprobs;    // All of them, if asked for.
  TokenTiming timing;
};

// What a reader may want to know at once.
struct GenerationListener {
  // A piece of a sample's text.
  std::function<void(uint32_t sample_index, std::string_view piece)> on_text =
      [](uint32_t, std::string_view) {};
  // The sample is whole.
  std::function<void(uint32_t sample_index, const GeneratedSample& sample)>
      on_finished = [](uint32_t, const GeneratedSample&) {};
};

std::unique_ptr<v1::InferenceService::Stub> ConnectToRouter(
    const std::string& router);

// Blocks until the stream has ended. What came before an error is in
// `*generation`. INTERNAL: a sample that was not asked for came, or one did not
// end.
grpc::Status StreamGeneration(v1::InferenceService::StubInterface& stub,
                              const v1::GenerateRequest& request,
                              absl::Duration timeout,
                              const GenerationListener& listener,
                              Generation* generation);

// "EOS", "LENGTH", ...
std::string FinishReasonName(v1::FinishReason reason);

// A few lines for people: latency, rate, why it ended, seed, usage, KV moved.
std::string SummaryText(const Generation& generation);
// Of one sample, the same and all the rest, for programs. The prompt is with
// sample 0.
nlohmann::json SummaryJson(const Generation& generation, uint32_t sample_index);

}  // namespace baton

#endif  // BATON_SERVER_CLI_GENERATION_STREAM_H_
