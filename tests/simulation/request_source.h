// The requests of a simulated world, and what each must get.
#ifndef BATON_TESTS_SIMULATION_REQUEST_SOURCE_H_
#define BATON_TESTS_SIMULATION_REQUEST_SOURCE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <random>

#include "absl/time/time.h"
#include "engine/generation_request.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/fake_rank.h"

namespace baton {

// One sample.
struct SimulatedRequest {
  GenerationRequest request;  // In kGenerate, without a deadline.
  // More than 1: it and the ones behind it may be submitted as one request.
  uint32_t num_samples = 1;
  // Behind request.token_ids.
  ExpectedTokens expected;
  // Of the world's unit of time, from its submission.
  std::optional<uint32_t> deadline_units;
};

// One thread. The i-th request depends on the options alone, so worlds that
// differ in when and how things happen ask for the same.
class RequestSource {
 public:
  struct Options {
    uint64_t seed = 0;
    // max_context_tokens: the engine's, which the pool may limit.
    FakeModelRunner::Options model = {};
    uint32_t max_prompt_tokens = 1;
    uint32_t max_tokens = 1;
    // Of one request; the engines' limit.
    uint32_t max_samples = 1;
    // Prompts about to need one more block, and most answers of max_tokens.
    bool fills_pool = false;
  };

  explicit RequestSource(const Options& options);

  // The reference stays good.
  const SimulatedRequest& Get(uint64_t index);

 private:
  void Add();
  void AddSamples(uint32_t num_samples);
  GenerationRequest NewRequest();
  void GoOnBehind(GenerationRequest* request);
  GenerationRequest NextSample();
  uint32_t PromptLength();
  void AddStops(const ExpectedTokens& whole, GenerationRequest* request);
  bool OneIn(uint32_t n) { return random_() % n == 0; }
  uint32_t UpTo(uint32_t n) { return 1 + static_cast<uint32_t>(random_() % n); }

  const Options options_;
  std::mt19937_64 random_;
  std::deque<SimulatedRequest> requests_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_REQUEST_SOURCE_H_
