// One engine over fakes, its requests, and whether they got what they must.
#ifndef BATON_TESTS_FAKES_ENGINE_WORLD_H_
#define BATON_TESTS_FAKES_ENGINE_WORLD_H_

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/logging.h"
#include "engine/engine_options.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {

// One thread.
class EngineWorld {
 public:
  struct Request {
    GenerationRequest request;
    RecordingTokenSink sink;
  };

  explicit EngineWorld(const FakeRank::Options& options)
      : options_(options), rank_(options, &clock_) {
    rank_.AddTo(&driver_);
  }

  Request& Submit(GenerationRequest request) {
    Request& added = requests_.emplace_back();
    added.request = request;
    CHECK_OK(rank_.engine().Submit(std::move(request), &added.sink));
    return added;
  }

  // As one request; what each sample must get is its own.
  void SubmitSamples(GenerationRequest request, uint32_t num_samples) {
    std::vector<TokenSink*> sinks;
    for (uint32_t i = 0; i < num_samples; ++i) {
      Request& added = requests_.emplace_back();
      added.request = request;
      added.request.sample_index += i;
      sinks.push_back(&added.sink);
    }
    request.num_samples = num_samples;
    CHECK_OK(rank_.engine().Submit(std::move(request), sinks));
  }

  void Abort(const Request& request) {
    engine().Abort(request.request.id, request.request.sample_index);
  }

  // Also that all blocks have come back.
  void RunUntilIdle() {
    CHECK(driver_.RunUntilIdle());
    EXPECT_EQ(engine().load().free_blocks, options_.num_blocks);
  }

  // Tokens, log-probabilities and alternatives, the prompt's too. A request
  // that did not end by itself: a prefix of each.
  void ExpectExact(const Request& done) const {
    ASSERT_TRUE(done.sink.finished());
    ExpectedTokens expected = ExpectedOf(options_.model, done.request);
    if (done.sink.code() != absl::StatusCode::kOk) {
      ASSERT_LE(done.sink.tokens.size(), expected.tokens.size());
      ASSERT_LE(done.sink.prompt_logprobs.size(),
                expected.prompt_logprobs.size());
      expected.tokens.resize(done.sink.tokens.size());
      expected.logprobs.resize(done.sink.tokens.size());
      expected.top.resize(done.sink.tokens.size());
      expected.prompt_logprobs.resize(done.sink.prompt_logprobs.size());
      expected.prompt_top.resize(done.sink.prompt_logprobs.size());
    }
    EXPECT_EQ(done.sink.tokens, expected.tokens) << done.request.id;
    EXPECT_EQ(done.sink.logprobs, expected.logprobs) << done.request.id;
    EXPECT_EQ(done.sink.top, expected.top) << done.request.id;
    EXPECT_EQ(done.sink.prompt_logprobs, expected.prompt_logprobs)
        << done.request.id;
    EXPECT_EQ(done.sink.prompt_top, expected.prompt_top) << done.request.id;
  }

  void ExpectAllExact() const {
    for (const Request& done : requests_) ExpectExact(done);
  }
  // And that all have ended by themselves.
  void ExpectAllWhole() const {
    for (const Request& done : requests_) {
      EXPECT_EQ(done.sink.code(), absl::StatusCode::kOk) << done.request.id;
    }
    ExpectAllExact();
  }

  uint32_t NumPreemptions() const {
    uint32_t preemptions = 0;
    for (const StepStats& step : rank_.steps()) preemptions += step.preemptions;
    return preemptions;
  }

  LLMEngine& engine() { return rank_.engine(); }
  FakeRank& rank() { return rank_; }
  EngineDriver& driver() { return driver_; }
  SimulatedClock& clock() { return clock_; }
  std::deque<Request>& requests() { return requests_; }

 private:
  const FakeRank::Options options_;
  SimulatedClock clock_;
  EngineDriver driver_{&clock_};
  std::deque<Request> requests_;
  FakeRank rank_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_ENGINE_WORLD_H_
