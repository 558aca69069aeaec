// One engine over fakes, its requests, and whether they got what they must.
#ifndef BATON_TESTS_SIMULATION_ENGINE_WORLD_H_
#define BATON_TESTS_SIMULATION_ENGINE_WORLD_H_

#include <deque>
#include <utility>
#include <vector>

#include "base/logging.h"
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

  // A request that did not end by itself: a prefix.
  void ExpectExact(const Request& done) const {
    ASSERT_TRUE(done.sink.finished());
    ExpectedTokens expected = ExpectedOf(options_.model, done.request);
    if (!done.sink.outcome->status.ok()) {
      ASSERT_LE(done.sink.tokens.size(), expected.tokens.size());
      expected.tokens.resize(done.sink.tokens.size());
      expected.logprobs.resize(done.sink.tokens.size());
    }
    EXPECT_EQ(done.sink.tokens, expected.tokens) << done.request.id;
    EXPECT_EQ(done.sink.logprobs, expected.logprobs) << done.request.id;
  }

  void ExpectAllExact() const {
    for (const Request& done : requests_) ExpectExact(done);
  }

  LLMEngine& engine() { return rank_.engine(); }
  FakeRank& rank() { return rank_; }
  EngineDriver& driver() { return driver_; }
  std::deque<Request>& requests() { return requests_; }

 private:
  const FakeRank::Options options_;
  SimulatedClock clock_;
  EngineDriver driver_{&clock_};
  std::deque<Request> requests_;
  FakeRank rank_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_ENGINE_WORLD_H_
