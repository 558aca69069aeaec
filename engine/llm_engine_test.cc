#include "engine/llm_engine.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

class LLMEngineTest : public testing::Test {
 protected:
  void Start(const FakeRank::Options& options) {
    options_ = options;
    rank_ = std::make_unique<FakeRank>(options, &clock_);
    rank_->AddTo(&driver_);
  }

  LLMEngine& engine() { return rank_->engine(); }
  std::string History() { return engine().steps().Lines(clock_.Now()); }

  RecordingTokenSink& Submit(GenerationRequest request) {
    const absl::Status status = engine().Submit(std::move(request), NewSink());
    CHECK_OK(status);
    return sinks_.back();
  }

  RecordingTokenSink* NewSink() { return &sinks_.emplace_back(); }

  void RunUntilIdle() {
    ASSERT_TRUE(driver_.RunUntilIdle());
    EXPECT_EQ(engine().load().free_blocks, options_.num_blocks);
  }

  void ExpectTokensOf(const GenerationRequest& request,
                      const RecordingTokenSink& sink) {
    const ExpectedTokens expected = ExpectedOf(options_.model, request);
    EXPECT_EQ(sink.tokens, expected.tokens);
    EXPECT_EQ(sink.logprobs, expected.logprobs);
    EXPECT_EQ(sink.top, expected.top);
    EXPECT_EQ(sink.prompt_logprobs, expected.prompt_logprobs);
    EXPECT_EQ(sink.prompt_top, expected.prompt_top);
  }

  FakeRank::Options options_;
  SimulatedClock clock_;
  EngineDriver driver_{&clock_};
  std::deque<RecordingTokenSink> sinks_;
  std::unique_ptr<FakeRank> rank_;
};

TEST_F(LLMEngineTest, StreamsTheTokensOfARequest) {
  Start({});
  const GenerationRequest request = MakeRequest(1, 70, 20);
  RecordingTokenSink& sink = Submit(request);
  RunUntilIdle();
  ExpectTokensOf(request, sink);
  EXPECT_EQ(sink.first_token_index, 0u);
  EXPECT_EQ(sink.code(), absl::StatusCode::kOk);
  EXPECT_EQ(sink.outcome->reason, FinishReason::kLength);
  EXPECT_EQ(sink.outcome->prompt_tokens, 70u);
  EXPECT_EQ(sink.outcome->output_tokens, 20u);
}

TEST_F(LLMEngineTest, AStopTokenIsSentCountedAndTheLast) {
  Start({});
  GenerationRequest request = MakeRequest(2, 5, 50);
  const uint32_t stop = ExpectedOf(options_.model, request).tokens.at(6);
  request.stop_token_ids = {stop};
  RecordingTokenSink& sink = Submit(request);
  RunUntilIdle();
  ExpectTokensOf(request, sink);
  EXPECT_EQ(sink.tokens.back(), stop);
  EXPECT_EQ(sink.outcome->reason, FinishReason::kStopToken);
  EXPECT_EQ(sink.outcome->output_tokens, sink.tokens.size());
}

TEST_F(LLMEngineTest, TheContextsEndIsALength) {
  Start({.model = {.max_context_tokens = 100}, .num_blocks = 2});
  const GenerationRequest request = MakeRequest(3, 90, 1000);
  RecordingTokenSink& sink = Submit(request);
  RecordingTokenSink& one_token = Submit(MakeRequest(4, 99, 1000));
  RunUntilIdle();
  EXPECT_EQ(sink.tokens.size(), 10u);
  EXPECT_EQ(sink.outcome->reason, FinishReason::kLength);
  EXPECT_EQ(one_token.tokens.size(), 1u);
}

TEST_F(LLMEngineTest, APoolSmallerThanTheContextIsTheLimitAndFillsUp) {
  Start({.model = {.max_context_tokens = 1000}, .num_blocks = 3});
  EXPECT_EQ(engine().limits().max_context_tokens, 192u);
  const absl::Status status =
      engine().Submit(MakeRequest(1, 192, 1), NewSink());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--kv_cache_bytes"), std::string::npos);
  RecordingTokenSink& sink = Submit(MakeRequest(1, 191, 1000));
  RecordingTokenSink& long_one = Submit(MakeRequest(2, 1, 1000));
  RunUntilIdle();
  EXPECT_EQ(sink.tokens.size(), 1u);
  EXPECT_EQ(long_one.tokens.size(), 191u);
}

TEST_F(LLMEngineTest, ResumedTokensKeepTheirIndicesAndTheDraws) {
  Start({});
  const GenerationRequest whole = MakeRequest(5, 30, 40);
  const ExpectedTokens expected = ExpectedOf(options_.model, whole);
  for (uint32_t received : {1u, 17u, 39u}) {
    GenerationRequest rest = whole;
    rest.id.counter = 100 + received;
    rest.token_ids.insert(rest.token_ids.end(), expected.tokens.begin(),
                          expected.tokens.begin() + received);
    RecordingTokenSink& sink = Submit(rest);
    RunUntilIdle();
    EXPECT_EQ(sink.first_token_index, received);
    EXPECT_EQ(sink.tokens, std::vector(expected.tokens.begin() + received,
                                       expected.tokens.end()));
    EXPECT_EQ(sink.outcome->output_tokens, 40u);
  }
}

TEST_F(LLMEngineTest, NoStopTokenIsDrawnBeforeMinTokensResumedOnesIncluded) {
  Start({});
  GenerationRequest request = MakeRequest(2, 5, 12);
  const std::vector<uint32_t> free = ExpectedOf(options_.model, request).tokens;
  request.stop_token_ids = {free[0], free[3]};
  request.min_tokens = 4;
  const ExpectedTokens expected = ExpectedOf(options_.model, request);
  RecordingTokenSink& sink = Submit(request);
  RunUntilIdle();
  ASSERT_GT(sink.tokens.size(), 4u);
  ExpectTokensOf(request, sink);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_NE(sink.tokens[i], free[0]) << i;
    EXPECT_NE(sink.tokens[i], free[3]) << i;
  }
  request.id.counter = 102;
  request.token_ids.insert(request.token_ids.end(), expected.tokens.begin(),
                           expected.tokens.begin() + 2);
  RecordingTokenSink& rest = Submit(request);
  RunUntilIdle();
  EXPECT_EQ(rest.tokens,
            std::vector(expected.tokens.begin() + 2, expected.tokens.end()));
}

TEST_F(LLMEngineTest, MinTokensOfAnyLengthForbidUpToTheContextsEnd) {
  Start({.model = {.max_context_tokens = 100}});
  GenerationRequest request = MakeRequest(2, 5, ~0u);
  request.stop_token_ids = {ExpectedOf(options_.model, request).tokens[0]};
  request.min_tokens = ~0u;
  RecordingTokenSink& sink = Submit(request);
  RunUntilIdle();
  EXPECT_EQ(sink.tokens.size(), 95u);
}

TEST_F(LLMEngineTest, PromptLogprobsComeFromTheIndexOnThatWasAsked) {
  Start({.engine = {.max_running_requests = 2}});
  for (const uint32_t from : {0u, 1u, 2u, 40u, 68u, 69u}) {
    GenerationRequest request = MakeRequest(5, 70, 2);
    request.prompt_logprobs_from = from;
    RecordingTokenSink& sink = Submit(request);
    RunUntilIdle();
    ExpectTokensOf(request, sink);
    const uint32_t first = std::max(from, 1u);
    EXPECT_EQ(sink.first_prompt_index, first);
    EXPECT_EQ(sink.prompt_tokens, std::vector(request.token_ids.begin() + first,
                                              request.token_ids.end()));
  }
}

TEST_F(LLMEngineTest, APromptOfOneTokenHasNothingToTell) {
  Start({});
  GenerationRequest request = MakeRequest(5, 1, 2);
  request.prompt_logprobs_from = 0;
  RecordingTokenSink& sink = Submit(request);
  RunUntilIdle();
  ExpectTokensOf(request, sink);
  EXPECT_FALSE(sink.first_prompt_index.has_value());
}

TEST_F(LLMEngineTest, APromptWhoseLogitsAreNoDistributionFails) {
  Start({.model = {.poison_token = 63}});
  GenerationRequest request = MakeRequest(5, 70, 2);
  request.token_ids[30] = 63;
  RecordingTokenSink& fine = Submit(request);
  request.id.counter = 6;
  request.prompt_logprobs_from = 31;
  RecordingTokenSink& failed = Submit(request);
  request.id.counter = 8;
  request.prompt_logprobs_from = 20;
  RecordingTokenSink& begun = Submit(request);
  request.id.counter = 7;
  request.prompt_logprobs_from = 32;
  RecordingTokenSink& later = Submit(request);
  RunUntilIdle();
  EXPECT_EQ(fine.code(), absl::StatusCode::kOk);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(failed.prompt_logprobs.empty());
  EXPECT_EQ(begun.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(begun.prompt_logprobs.size(), 11u);
  EXPECT_EQ(later.code(), absl::StatusCode::kOk);
}

TEST_F(LLMEngineTest, TheSamplesOfOneRequestDifferByTheirIndex) {
  Start({});
  GenerationRequest request = MakeRequest(7, 12, 16);
  RecordingTokenSink& first = Submit(request);
  request.sample_index = 1;
  RecordingTokenSink& second = Submit(request);
  RunUntilIdle();
  ExpectTokensOf(request, second);
  EXPECT_NE(first.tokens, second.tokens);
}

TEST_F(LLMEngineTest, ALiveRequestsTwinIsRefusedAndItGoesOn) {
  Start({});
  const GenerationRequest request = MakeRequest(1, 10, 5);
  RecordingTokenSink& first = Submit(request);
  RecordingTokenSink& twin = Submit(request);
  RunUntilIdle();
  EXPECT_EQ(twin.code(), absl::StatusCode::kAlreadyExists);
  ExpectTokensOf(request, first);
  RecordingTokenSink& later = Submit(request);  // The id is free again.
  RunUntilIdle();
  ExpectTokensOf(request, later);
}

TEST_F(LLMEngineTest, TheQueueIsBounded) {
  Start({.engine = {.max_running_requests = 1, .max_waiting_requests = 2}});
  Submit(MakeRequest(1, 10, 5));
  Submit(MakeRequest(2, 10, 5));
  EXPECT_EQ(engine().Submit(MakeRequest(3, 10, 5), NewSink()).code(),
            absl::StatusCode::kResourceExhausted);
  driver_.Turn();  // The first runs: a place is free.
  Submit(MakeRequest(3, 10, 5));
  EXPECT_EQ(engine().Submit(MakeRequest(4, 10, 5), NewSink()).code(),
            absl::StatusCode::kResourceExhausted);
  RunUntilIdle();
  EXPECT_FALSE(sinks_[2].finished());  // A refused request hears nothing.
}

TEST_F(LLMEngineTest, TransfersAreRefusedWithoutAnAgent) {
  Start({});
  GenerationRequest prefill = MakeRequest(1, 10, 5);
  prefill.mode = RequestMode::kPrefill;
  EXPECT_EQ(engine().Submit(prefill, NewSink()).code(),
            absl::StatusCode::kFailedPrecondition);
  GenerationRequest decode = MakeRequest(1, 10, 5);
  decode.mode = RequestMode::kDecode;
  RecordingTokenSink& sink = Submit(decode);  // Without a handle: fine.
  RunUntilIdle();
  ExpectTokensOf(decode, sink);
}

TEST_F(LLMEngineTest, ADeadlineEndsARequestInTheQueueAndInTheRunningSet) {
  Start({.engine = {.max_running_requests = 1}, .task_time = absl::Seconds(1)});
  GenerationRequest running = MakeRequest(1, 10, 500);
  running.deadline = clock_.Now() + absl::Seconds(20);
  GenerationRequest queued = MakeRequest(2, 10, 500);
  queued.deadline = clock_.Now() + absl::Seconds(10);
  RecordingTokenSink& first = Submit(running);
  RecordingTokenSink& second = Submit(queued);
  ASSERT_TRUE(driver_.RunUntil([&] { return second.finished(); }));
  EXPECT_EQ(second.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(clock_.Now(), queued.deadline + absl::Milliseconds(10));
  EXPECT_FALSE(first.finished());
  RunUntilIdle();
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(first.tokens.empty());
}

TEST_F(LLMEngineTest, ARowOfNanFailsItsRequestAlone) {
  FakeRank::Options options;
  options.model.poison_token = 63;  // In no prompt of MakeRequest.
  Start(options);
  GenerationRequest bad = MakeRequest(1, 20, 10);
  bad.token_ids.back() = 63;
  RecordingTokenSink& failed = Submit(bad);
  options_.model.vocab_size = 64;
  GenerationRequest good = MakeRequest(2, 20, 3);
  RecordingTokenSink& fine = Submit(good);
  RunUntilIdle();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(failed.tokens.empty());
  ExpectTokensOf(good, fine);
}

TEST_F(LLMEngineTest, AnAbortWhileAStepIsInFlightIgnoresItsResult) {
  Start({});
  RecordingTokenSink& sink = Submit(MakeRequest(1, 10, 50));
  ASSERT_TRUE(driver_.RunUntil([&] { return sink.tokens.size() == 3; }));
  engine().Abort({.router_nonce = 7, .counter = 1}, std::nullopt);
  engine().Advance();  // The stream isn't polled: the step is in flight.
  engine().CheckInvariants();
  EXPECT_EQ(sink.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(sink.outcome->ended_in, RequestActivity::kDecode);
  EXPECT_EQ(engine().load().deferred_blocks, 1u);
  RunUntilIdle();
  EXPECT_EQ(sink.tokens.size(), 3u);
}

TEST_F(LLMEngineTest, AbortEndsOneSampleOrAll) {
  Start({});
  GenerationRequest request = MakeRequest(1, 10, 200);
  for (uint32_t sample : {0u, 1u, 2u, 5u}) {
    request.sample_index = sample;
    Submit(request);
  }
  RecordingTokenSink& other = Submit(MakeRequest(2, 10, 5));
  driver_.Turn();
  engine().Abort(request.id, 1);
  engine().Abort(request.id, 4);  // Not there: nothing.
  driver_.Turn();
  EXPECT_EQ(sinks_[1].code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(sinks_[0].finished() || sinks_[3].finished());
  engine().Abort(request.id, std::nullopt);
  RunUntilIdle();
  for (int i : {0, 2, 3}) {
    EXPECT_EQ(sinks_[i].code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(other.code(), absl::StatusCode::kOk);
}

TEST_F(LLMEngineTest, LoadAndStatsTellWhatGoesOn) {
  Start({.engine = {.max_running_requests = 1,
                    .max_batched_tokens = 16,
                    .max_chunk_tokens = 16},
         .task_time = absl::Milliseconds(2)});
  Submit(MakeRequest(1, 40, 2));
  Submit(MakeRequest(2, 30, 2));
  driver_.Turn();
  const EngineLoad load = engine().load();
  EXPECT_EQ(load.running_requests, 1u);
  EXPECT_EQ(load.waiting_requests, 1u);
  EXPECT_EQ(load.pending_prefill_tokens, 70u);
  EXPECT_EQ(load.free_blocks, load.total_blocks - 1);
  RunUntilIdle();
  ASSERT_EQ(rank_->steps().size(), 3u + 1u + 2u + 1u);
  EXPECT_TRUE(rank_->steps()[0].prefill);
  EXPECT_EQ(rank_->steps()[0].rows, 16u);
  EXPECT_EQ(rank_->steps()[2].rows, 8u);
  EXPECT_FALSE(rank_->steps()[3].prefill);
  EXPECT_GE(rank_->steps()[0].device_time, absl::Milliseconds(2));
  EXPECT_EQ(engine().load().pending_prefill_tokens, 0u);
  EXPECT_GE(sinks_[1].outcome->queue_time, absl::Milliseconds(16));
}

TEST_F(LLMEngineTest, RequestsEndedFromOutsideAreNoLoadAnyMore) {
  Start({});
  EXPECT_FALSE(engine().EndUnfinished(absl::UnavailableError("lost")));
  RecordingTokenSink& sink = Submit(MakeRequest(1, 70, 3));
  engine().Collect();
  ASSERT_EQ(engine().load().running_requests, 1u);
  EXPECT_TRUE(engine().EndUnfinished(absl::UnavailableError("lost")));
  EXPECT_EQ(sink.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine().load().running_requests, 0u);
  EXPECT_EQ(engine().load().free_blocks, options_.num_blocks);
  EXPECT_FALSE(engine().EndUnfinished(absl::UnavailableError("lost")));
}

TEST_F(LLMEngineTest, ShedsTheYoungerHalfOfWhatWaitsAndNothingThatRuns) {
  Start({.engine = {.max_running_requests = 1}});
  const absl::Status status = absl::ResourceExhaustedError("memory");
  EXPECT_EQ(engine().ShedWaiting(status), 0u);
  Submit(MakeRequest(1, 20, 3));
  ASSERT_TRUE(engine().Advance());
  for (uint64_t i = 2; i <= 6; ++i) Submit(MakeRequest(i, 20, 3));
  EXPECT_EQ(engine().ShedWaiting(status), 3u);
  RunUntilIdle();
  for (size_t i = 0; i < sinks_.size(); ++i) {
    EXPECT_EQ(sinks_[i].code(), i < 3 ? absl::StatusCode::kOk
                                      : absl::StatusCode::kResourceExhausted)
        << i;
  }
}

TEST_F(LLMEngineTest, TellsTheNewestStepsAndWhichAreInFlight) {
  Start({.engine = {.pipeline_depth = 1}});
  EXPECT_EQ(History(), "");
  Submit(MakeRequest(1, 70, 3));
  ASSERT_TRUE(engine().Advance());
  EXPECT_THAT(History(),
              testing::MatchesRegex("step 1 prefill rows 70 sequences 1 .* "
                                    "in flight\n"));
  RunUntilIdle();
  EXPECT_THAT(History(),
              testing::MatchesRegex("step 1 prefill rows 70 .* done after .*\n"
                                    "step 2 decode rows 1 .* done after .*\n"
                                    "step 3 decode rows 1 .* done after .*\n"));
}

TEST_F(LLMEngineTest,
       EndUnfinishedEndsRequestsInEveryPhaseAndTheNextAreServed) {
  FakeRank::Options options;
  options.engine.max_running_requests = 2;
  options.engine.max_chunk_tokens = 8;
  options.engine.max_batched_tokens = 8;
  Start(options);
  const RecordingTokenSink& decoding = Submit(MakeRequest(1, 5, 100));
  ASSERT_TRUE(driver_.RunUntil([&] { return decoding.tokens.size() == 3; }));
  const RecordingTokenSink& prefilling = Submit(MakeRequest(2, 200, 10));
  const RecordingTokenSink& waiting = Submit(MakeRequest(3, 5, 10));
  while (engine().load().waiting_requests == 0) {
    driver_.Turn();
  }
  ASSERT_EQ(engine().load().running_requests, 2u);
  engine().Advance();  // Leaves a step in flight.
  ASSERT_TRUE(engine().has_steps());
  engine().EndUnfinished(absl::UnavailableError("no group"));
  for (const RecordingTokenSink* sink : {&decoding, &prefilling, &waiting}) {
    ASSERT_TRUE(sink->finished());
    EXPECT_EQ(sink->code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(sink->outcome->status.message(), "no group");
  }
  EXPECT_EQ(decoding.outcome->ended_in, RequestActivity::kDecode);
  EXPECT_EQ(prefilling.outcome->ended_in, RequestActivity::kPrefill);
  EXPECT_EQ(waiting.outcome->ended_in, RequestActivity::kQueued);
  RunUntilIdle();
  const GenerationRequest next = MakeRequest(4, 30, 20);
  const RecordingTokenSink& served = Submit(next);
  RunUntilIdle();
  ExpectTokensOf(next, served);
}

}  // namespace
}  // namespace baton
