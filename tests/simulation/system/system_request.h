// A request of the simulated system's clients, and what each sample must get.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_REQUEST_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/router/validate.h"
#include "server/text/tokenizer.h"
#include "tests/simulation/system/dice.h"
#include "tests/simulation/system/worker_shape.h"

namespace baton {

struct ExpectedSample {
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
  std::string text;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
};

struct SystemRequest {
  GenerationPlan plan;
  std::vector<ExpectedSample> samples;
  std::vector<float> prompt_logprobs;
  // From its start on:
  std::optional<absl::Duration> deadline;
  std::optional<absl::Duration> cancelled_after;
  bool reads_slowly = false;
};

struct SystemRequestOptions {
  // max_context_tokens: what every worker can hold.
  ModelShape model;
  uint32_t max_prompt_tokens = 1;
  uint32_t max_tokens = 1;
  uint32_t max_samples = 1;
  bool cancels = false;
  bool has_deadlines = false;
  bool reads_slowly = false;
  absl::Duration unit;  // Cancels and deadlines come after some of it.
};

// Of a tokenizer whose first tokens are those of the model.
SystemRequest RandomRequest(const SystemRequestOptions& options,
                            const Tokenizer& tokenizer, Dice* dice);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_REQUEST_H_
