// Prompts of which another request has left whole blocks in the prefix cache.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cache_spec.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_world.h"
#include "tests/fakes/fake_rank.h"

namespace baton {
namespace {

struct Pipeline {
  uint32_t depth = 1;
  uint32_t drafts = 0;
};

class EnginePrefixTest : public testing::TestWithParam<Pipeline> {
 protected:
  static FakeRank::Options Options() {
    FakeRank::Options options;
    options.engine.pipeline_depth = GetParam().depth;
    options.engine.num_draft_tokens = GetParam().drafts;
    options.engine.max_chunk_tokens = 50;
    options.model.drafter = GetParam().drafts > 0;
    options.task_time = absl::Microseconds(300);
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Pipelines, EnginePrefixTest,
                         testing::Values(Pipeline{1, 0}, Pipeline{3, 0},
                                         Pipeline{1, 3}, Pipeline{3, 5}),
                         [](const auto& tested) {
                           return "Depth" + std::to_string(tested.param.depth) +
                                  "Drafts" +
                                  std::to_string(tested.param.drafts);
                         });

// The prompt of request 1, whatever else differs.
GenerationRequest Ask(uint64_t counter, uint32_t prompt, uint32_t max_tokens) {
  GenerationRequest request = MakeRequest(counter, prompt, max_tokens);
  request.token_ids = MakeRequest(1, prompt, 1).token_ids;
  request.prompt_logprobs_from.reset();
  return request;
}

// The prompt of a turn that goes on behind `done`.
GenerationRequest FollowUp(uint64_t counter, const EngineWorld::Request& done,
                           uint32_t more, uint32_t max_tokens) {
  GenerationRequest request = Ask(counter, more, max_tokens);
  std::vector<uint32_t> tokens = done.request.token_ids;
  tokens.insert(tokens.end(), done.sink.tokens.begin(), done.sink.tokens.end());
  request.token_ids.insert(request.token_ids.begin(), tokens.begin(),
                           tokens.end());
  request.original_prompt_tokens =
      static_cast<uint32_t>(request.token_ids.size());
  return request;
}

uint32_t Cached(const EngineWorld::Request& request) {
  return request.sink.outcome->cached_tokens;
}

uint64_t PromptRows(EngineWorld& world) {
  uint64_t rows = 0;
  for (const StepStats& step : world.rank().steps()) {
    if (step.prefill) rows += step.rows;
  }
  return rows;
}

TEST_P(EnginePrefixTest, OnlyTheRowsBehindTheWholeBlocksAreComputed) {
  for (const uint32_t prompt : {1, 63, 64, 65, 128, 129, 200}) {
    const uint32_t whole = (prompt - 1) / 64 * 64;
    EngineWorld world(Options());
    world.Submit(Ask(1, prompt, 2));
    world.RunUntilIdle();
    EXPECT_EQ(PromptRows(world), prompt);
    // The first token drawn has a row, too.
    EXPECT_EQ(world.engine().load().cached_blocks, (prompt + 1) / 64);
    const EngineWorld::Request& again = world.Submit(Ask(2, prompt, 40));
    world.RunUntilIdle();
    EXPECT_EQ(PromptRows(world), 2 * prompt - whole);
    EXPECT_EQ(Cached(world.requests().front()), 0u);
    EXPECT_EQ(Cached(again), whole);
    world.ExpectAllWhole();
    const PrefixCacheCounts counts = world.engine().load().prefix_cache;
    EXPECT_EQ(counts.queried_tokens, 2 * prompt);
    EXPECT_EQ(counts.hit_tokens, whole);
    EXPECT_EQ(counts.evicted_blocks, 0u);
  }
}

TEST_P(EnginePrefixTest, AFollowUpTurnFindsTheAnswerToo) {
  EngineWorld world(Options());
  const EngineWorld::Request& first = world.Submit(Ask(1, 100, 120));
  world.RunUntilIdle();
  const EngineWorld::Request& second = world.Submit(FollowUp(2, first, 20, 90));
  world.RunUntilIdle();
  EXPECT_EQ(Cached(second), 219 / 64 * 64u);
  const EngineWorld::Request& third = world.Submit(FollowUp(3, second, 7, 30));
  world.RunUntilIdle();
  EXPECT_EQ(Cached(third), 329 / 64 * 64u);
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, AResumedRequestFindsWhatItHadMade) {
  EngineWorld world(Options());
  GenerationRequest request = Ask(1, 70, 200);
  world.Submit(request);
  world.RunUntilIdle();
  const std::vector<uint32_t> tokens = world.requests().front().sink.tokens;
  request.id.counter = 2;
  request.token_ids.insert(request.token_ids.end(), tokens.begin(),
                           tokens.begin() + 130);
  const EngineWorld::Request& resumed = world.Submit(request);
  world.RunUntilIdle();
  EXPECT_EQ(Cached(resumed), 192u);
  EXPECT_EQ(resumed.sink.tokens,
            std::vector<uint32_t>(tokens.begin() + 130, tokens.end()));
}

// Of a running one too.
TEST_P(EnginePrefixTest, BlocksAreFoundAsSoonAsTheyAreCommitted) {
  EngineWorld world(Options());
  const EngineWorld::Request& first = world.Submit(Ask(1, 100, 200));
  ASSERT_TRUE(
      world.driver().RunUntil([&] { return first.sink.tokens.size() > 100; }));
  const EngineWorld::Request& second = world.Submit(FollowUp(2, first, 5, 50));
  world.RunUntilIdle();
  EXPECT_GE(Cached(second), 192u);
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, RowsBehindWhichStandsNoDistributionAreNotKept) {
  FakeRank::Options options = Options();
  options.model.poison_token = Ask(1, 140, 1).token_ids.back();
  EngineWorld world(options);
  const EngineWorld::Request& poisoned = world.Submit(Ask(1, 140, 4));
  world.RunUntilIdle();
  EXPECT_TRUE(absl::IsInternal(poisoned.sink.outcome->status));
  // Of the chunks before its last one.
  EXPECT_EQ(world.engine().load().cached_blocks, 1u);
}

TEST_P(EnginePrefixTest, OtherSaltsFindNothing) {
  EngineWorld world(Options());
  std::vector<std::string> salts = {"", "a", "b", std::string(128, 'a')};
  for (const std::string& salt : salts) {
    for (const uint32_t cached : {0, 128}) {
      GenerationRequest request = Ask(1, 150, 20);
      request.cache_salt = salt;
      const EngineWorld::Request& done = world.Submit(request);
      world.RunUntilIdle();
      EXPECT_EQ(Cached(done), cached) << salt;
    }
  }
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, BypassFindsNothingAndLeavesNothing) {
  EngineWorld world(Options());
  GenerationRequest bypass = Ask(1, 150, 100);
  bypass.bypass_prefix_cache = true;
  world.Submit(bypass);
  world.RunUntilIdle();
  EXPECT_EQ(world.engine().load().cached_blocks, 0u);
  const EngineWorld::Request& first = world.Submit(Ask(2, 150, 20));
  world.RunUntilIdle();
  const EngineWorld::Request& again = world.Submit(bypass);
  world.RunUntilIdle();
  EXPECT_EQ(Cached(first), 0u);
  EXPECT_EQ(Cached(again), 0u);
  EXPECT_EQ(world.engine().load().prefix_cache.queried_tokens, 150u);
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, WithoutTheCacheNothingIsKept) {
  FakeRank::Options options = Options();
  options.engine.prefix_cache = false;
  EngineWorld world(options);
  for (uint64_t counter : {1, 2}) {
    const EngineWorld::Request& done = world.Submit(Ask(counter, 150, 20));
    world.RunUntilIdle();
    EXPECT_EQ(Cached(done), 0u);
  }
  EXPECT_EQ(world.engine().load().cached_blocks, 0u);
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, RowsThatTellOfThePromptAreComputed) {
  EngineWorld world(Options());
  world.Submit(Ask(1, 200, 2));
  world.RunUntilIdle();
  for (const uint32_t from : {0, 1, 64, 65, 128, 129, 130, 199}) {
    GenerationRequest request = Ask(from + 2, 200, 30);
    request.prompt_logprobs_from = from;
    const EngineWorld::Request& done = world.Submit(request);
    world.RunUntilIdle();
    // Token `from` is told by the row before it.
    EXPECT_EQ(Cached(done), (std::max(from, 1u) - 1) / 64 * 64) << from;
  }
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, SamplesShareWhatTheFirstOneFinds) {
  EngineWorld world(Options());
  world.Submit(Ask(1, 200, 2));
  world.RunUntilIdle();
  for (const bool tells : {false, true}) {
    GenerationRequest request = Ask(7 + tells, 200, 100);
    if (tells) request.prompt_logprobs_from = 100;
    const size_t first = world.requests().size();
    world.SubmitSamples(request, 4);
    world.RunUntilIdle();
    for (size_t i = first; i < world.requests().size(); ++i) {
      EXPECT_EQ(Cached(world.requests()[i]), tells && i == first ? 64u : 192u);
    }
  }
  EXPECT_EQ(PromptRows(world), 200u + 4 * 8 + (200 - 64) + 3 * 8);
  // The first tells, and the others draw their own.
  for (size_t i = 6; i < 9; ++i) {
    world.requests()[i].request.prompt_logprobs_from.reset();
  }
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, RecomputingAfterAPreemptionFindsTheOwnBlocks) {
  EngineWorld world(Options());
  const EngineWorld::Request& done = world.Submit(Ask(1, 150, 150));
  ASSERT_TRUE(
      world.driver().RunUntil([&] { return done.sink.tokens.size() > 60; }));
  ASSERT_TRUE(world.engine().Preempt(done.request.id, 0));
  world.RunUntilIdle();
  // All but what was not committed in whole blocks.
  EXPECT_LT(PromptRows(world), 150u + 64);
  EXPECT_EQ(Cached(done), 0u);
  EXPECT_EQ(world.engine().load().prefix_cache.hit_tokens, 192u);
  world.ExpectAllWhole();
}

// Rows of the prompt are of another form than the same tokens' rows behind it.
TEST_P(EnginePrefixTest, OnlyThePromptsOwnFormIsFoundWhereItHasOne) {
  FakeRank::Options options = Options();
  options.model.prompt_has_own_form = true;
  for (const uint32_t prompt : {100, 128}) {
    EngineWorld world(options);
    const EngineWorld::Request& first = world.Submit(Ask(1, prompt, 120));
    world.RunUntilIdle();
    EXPECT_EQ(world.engine().load().cached_blocks, prompt / 64);
    const EngineWorld::Request& second =
        world.Submit(FollowUp(2, first, 20, 90));
    world.RunUntilIdle();
    EXPECT_EQ(Cached(second), prompt / 64 * 64);
    // Its answer so far is of the form behind a prompt.
    GenerationRequest resumed = first.request;
    resumed.id.counter = 9;
    resumed.token_ids = FollowUp(9, first, 1, 1).token_ids;
    resumed.token_ids.resize(prompt + 100);
    const EngineWorld::Request& third = world.Submit(resumed);
    world.RunUntilIdle();
    EXPECT_EQ(Cached(third), prompt / 64 * 64);
    EXPECT_EQ(third.sink.tokens,
              std::vector<uint32_t>(first.sink.tokens.begin() + 100,
                                    first.sink.tokens.end()));
    world.ExpectExact(first);
    world.ExpectExact(second);
  }
}

TEST_P(EnginePrefixTest, WhatIsKeptGivesWayToWhoNeedsIt) {
  FakeRank::Options options = Options();
  options.num_blocks = 8;
  EngineWorld world(options);
  for (uint64_t counter = 0; counter < 60; ++counter) {
    // Every third one goes on behind an earlier prompt.
    GenerationRequest request =
        MakeRequest(counter % 3 == 0 ? 1 : counter, 90, 60 + counter * 5);
    request.id.counter = counter;
    world.Submit(request);
    if (counter % 4 == 0) world.RunUntilIdle();
  }
  world.RunUntilIdle();
  EXPECT_GT(world.engine().load().prefix_cache.evicted_blocks, 50u);
  EXPECT_GT(world.engine().load().prefix_cache.hit_tokens, 0u);
  EXPECT_GT(world.NumPreemptions(), 0u);
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, OfPromptsThatComeTogetherTheOldestIsComputed) {
  EngineWorld world(Options());
  for (uint64_t counter = 1; counter <= 6; ++counter) {
    world.Submit(Ask(counter, 200, 100));
  }
  GenerationRequest other = MakeRequest(9, 200, 100);
  world.Submit(other);
  world.RunUntilIdle();
  for (const EngineWorld::Request& request : world.requests()) {
    const uint64_t counter = request.request.id.counter;
    EXPECT_EQ(Cached(request), counter == 1 || counter == 9 ? 0u : 192u);
  }
  EXPECT_EQ(PromptRows(world), 200u + 5 * 8 + 200);
  world.ExpectAllWhole();
}

TEST_P(EnginePrefixTest, WhoWaitsForAPromptGoesOnIfItIsGivenUp) {
  EngineWorld world(Options());
  const EngineWorld::Request& first = world.Submit(Ask(1, 300, 100));
  const EngineWorld::Request& second = world.Submit(Ask(2, 300, 100));
  ASSERT_TRUE(world.driver().RunUntil(
      [&] { return world.engine().load().cached_blocks > 0; }));
  EXPECT_EQ(world.engine().load().running_requests, 1u);
  world.Abort(first);
  world.RunUntilIdle();
  EXPECT_GE(Cached(second), 64u);
  EXPECT_EQ(second.sink.code(), absl::StatusCode::kOk);
  world.ExpectAllExact();
}

// The second answers as the first, so that it computes the same blocks.
TEST_P(EnginePrefixTest, TheSameBlocksTwiceAtOnceAreKeptOnce) {
  EngineWorld world(Options());
  const GenerationRequest request = Ask(1, 60, 150);
  for (const uint64_t counter : {1, 2}) {
    GenerationRequest twin = request;
    twin.id.counter = counter;
    world.Submit(twin);
  }
  world.RunUntilIdle();
  EXPECT_EQ(world.engine().load().cached_blocks, 3u);
  const EngineWorld::Request& longer =
      world.Submit(FollowUp(4, world.requests()[1], 10, 10));
  world.RunUntilIdle();
  EXPECT_EQ(Cached(longer), 192u);
  world.ExpectAllWhole();
}

}  // namespace
}  // namespace baton
