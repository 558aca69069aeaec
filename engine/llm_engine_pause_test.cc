// Samples whose readers are behind stand still, give way, and go on exactly.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_world.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/split_world.h"

namespace baton {
namespace {

using Request = EngineWorld::Request;

void SetPaused(EngineWorld& world, const Request& request, bool paused) {
  world.engine().SetPaused({.id = request.request.id,
                            .first_sample = request.request.sample_index,
                            .paused = paused});
}

void RunUntilTokens(EngineWorld& world, const Request& request, size_t tokens) {
  ASSERT_TRUE(world.driver().RunUntil(
      [&] { return request.sink.tokens.size() >= tokens; }));
}

// Until nothing happens any more, but by the clock.
void RunUntilStill(EngineWorld& world) {
  ASSERT_TRUE(world.driver().RunUntil([&] { return !world.driver().Turn(); }));
}

TEST(LLMEnginePauseTest, APauseBeforeAnyTokenChangesNone) {
  for (uint32_t depth = 1; depth <= kMaxPipelineDepth; ++depth) {
    for (uint32_t drafts : {0u, 3u}) {
      for (size_t before = 0; before < 30; ++before) {
        EngineWorld world(
            {.engine = {.pipeline_depth = depth, .num_draft_tokens = drafts},
             .task_time = absl::Microseconds(700)});
        const Request& victim = world.Submit(MakeRequest(1, 60, 30));
        world.Submit(MakeRequest(2, 30, 40));
        RunUntilTokens(world, victim, before);
        SetPaused(world, victim, true);
        RunUntilStill(world);
        EXPECT_FALSE(victim.sink.finished() && before == 0);
        SetPaused(world, victim, false);
        world.RunUntilIdle();
        world.ExpectAllWhole();
        EXPECT_EQ(world.NumPreemptions(), 0u);
      }
    }
  }
}

TEST(LLMEnginePauseTest, TheOthersGoOnAndItsOwnTokensEndWithTheStepsInFlight) {
  constexpr uint32_t kDepth = 2;
  EngineWorld world({.engine = {.pipeline_depth = kDepth}});
  const Request& victim = world.Submit(MakeRequest(1, 60, 200));
  const Request& other = world.Submit(MakeRequest(2, 30, 200));
  RunUntilTokens(world, victim, 10);
  SetPaused(world, victim, true);
  const size_t paused_at = victim.sink.tokens.size();
  RunUntilStill(world);
  EXPECT_EQ(other.sink.code(), absl::StatusCode::kOk);
  EXPECT_LE(victim.sink.tokens.size(), paused_at + kDepth);
  EXPECT_FALSE(victim.sink.finished());
  EXPECT_EQ(world.engine().load().paused_requests, 1u);
  SetPaused(world, victim, false);
  world.RunUntilIdle();
  world.ExpectAllWhole();
  EXPECT_EQ(world.engine().load().paused_requests, 0u);
}

TEST(LLMEnginePauseTest, WithOnlyPausedOnesNothingIsDoneAndItIsNotIdle) {
  EngineWorld world({.engine = {.pipeline_depth = 3}});
  const Request& victim = world.Submit(MakeRequest(1, 60, 200));
  RunUntilTokens(world, victim, 10);
  SetPaused(world, victim, true);
  RunUntilStill(world);
  const size_t steps = world.rank().steps().size();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(world.driver().Turn());
  EXPECT_EQ(world.rank().steps().size(), steps);
  EXPECT_FALSE(world.engine().idle());
  EXPECT_FALSE(world.engine().has_steps());
  const StepWish wish = world.engine().Wish();
  EXPECT_EQ(wish.prefill_tokens, 0u);
  EXPECT_EQ(wish.decode_rows, 0u);
  EXPECT_EQ(wish.num_drafts, 0u);
  EXPECT_EQ(world.engine().TimeToNextTurn(absl::Seconds(1)), absl::Seconds(1));
  SetPaused(world, victim, false);
  world.RunUntilIdle();
  world.ExpectAllWhole();
}

TEST(LLMEnginePauseTest, ItIsAbortedAndMeetsItsDeadlineAsAnyOther) {
  EngineWorld world({});
  const Request& aborted = world.Submit(MakeRequest(1, 60, 200));
  GenerationRequest late = MakeRequest(2, 60, 200);
  late.deadline = world.clock().Now() + absl::Hours(1);
  const Request& expired = world.Submit(late);
  RunUntilTokens(world, expired, 10);
  for (const Request* victim : {&aborted, &expired}) {
    SetPaused(world, *victim, true);
  }
  RunUntilStill(world);
  world.Abort(aborted);
  RunUntilStill(world);
  EXPECT_EQ(aborted.sink.code(), absl::StatusCode::kCancelled);
  world.clock().Advance(absl::Hours(1));
  world.RunUntilIdle();
  EXPECT_EQ(expired.sink.code(), absl::StatusCode::kDeadlineExceeded);
  world.ExpectAllExact();
}

TEST(LLMEnginePauseTest, WhoeverWaitsGetsItsPlaceAndItsBlocks) {
  for (const uint32_t max_running : {2u, 10u}) {
    // Place for two, or blocks for two and a bit.
    EngineWorld world({.engine = {.max_running_requests = max_running},
                       .num_blocks = max_running == 2 ? 64u : 7u});
    std::vector<const Request*> stuck;
    for (uint64_t i = 0; i < 2; ++i) {
      stuck.push_back(&world.Submit(MakeRequest(i, 120, 100)));
    }
    RunUntilTokens(world, *stuck.back(), 5);
    for (const Request* request : stuck) SetPaused(world, *request, true);
    for (uint64_t i = 2; i < 6; ++i) world.Submit(MakeRequest(i, 120, 100));
    RunUntilStill(world);
    for (size_t i = 2; i < 6; ++i) {
      EXPECT_EQ(world.requests()[i].sink.code(), absl::StatusCode::kOk);
    }
    for (const Request* request : stuck) {
      EXPECT_FALSE(request->sink.finished());
      SetPaused(world, *request, false);
    }
    world.RunUntilIdle();
    world.ExpectAllWhole();
    EXPECT_GT(world.NumPreemptions(), 0u);
  }
}

TEST(LLMEnginePauseTest, TheOldestGivesItsBlocksWhenItIsPaused) {
  EngineWorld world({.num_blocks = 8});
  const Request& oldest = world.Submit(MakeRequest(1, 150, 100));
  RunUntilTokens(world, oldest, 40);
  SetPaused(world, oldest, true);
  // They fit, and grow until its blocks are wanted.
  const Request& first = world.Submit(MakeRequest(2, 60, 190));
  const Request& second = world.Submit(MakeRequest(3, 60, 190));
  RunUntilStill(world);
  EXPECT_EQ(first.sink.code(), absl::StatusCode::kOk);
  EXPECT_EQ(second.sink.code(), absl::StatusCode::kOk);
  // They never had to give way to each other.
  EXPECT_EQ(world.NumPreemptions(), 1u);
  SetPaused(world, oldest, false);
  world.RunUntilIdle();
  world.ExpectAllWhole();
}

TEST(LLMEnginePauseTest, SamplesOfOneRequestPauseTogetherOrAlone) {
  for (const uint32_t count : {1u, 3u, 8u}) {
    EngineWorld world({.engine = {.max_chunk_tokens = 40}});
    world.SubmitSamples(MakeRequest(7, 150, 50), 5);
    // In the prompt, which the first one computes for all.
    for (int i = 0; i < 3; ++i) world.driver().Turn();
    const PauseCommand pause = {.id = world.requests()[0].request.id,
                                .first_sample = 1,
                                .num_samples = count,
                                .paused = true};
    world.engine().SetPaused(pause);
    RunUntilStill(world);
    for (uint32_t i = 0; i < 5; ++i) {
      const bool paused = i >= 1 && i < 1 + count;
      EXPECT_EQ(world.requests()[i].sink.finished(), !paused) << i;
    }
    PauseCommand resume = pause;
    resume.paused = false;
    world.engine().SetPaused(resume);
    world.RunUntilIdle();
    world.ExpectAllWhole();
  }
}

TEST(LLMEnginePauseTest, AWholePromptIsToldHoweverOftenItPauses) {
  EngineWorld world({.engine = {.max_chunk_tokens = 16}});
  GenerationRequest request = MakeRequest(5, 200, 5);
  request.prompt_logprobs_from = 0;
  const Request& victim = world.Submit(request);
  for (size_t told = 16; told < 190; told += 16) {
    ASSERT_TRUE(world.driver().RunUntil(
        [&] { return victim.sink.prompt_logprobs.size() >= told; }));
    SetPaused(world, victim, true);
    RunUntilStill(world);
    EXPECT_TRUE(victim.sink.tokens.empty());
    SetPaused(world, victim, false);
  }
  world.RunUntilIdle();
  world.ExpectAllWhole();
}

TEST(LLMEnginePauseTest, ASplitRequestPausesOnBothSides) {
  FakeRank::Options options;
  options.engine.max_chunk_tokens = 20;
  SplitWorld world(options, options);
  const Split& split = world.Prefill(MakeRequest(3, 150, 40));
  PauseCommand pause = {.id = split.request.id, .paused = true};
  for (int i = 0; i < 3; ++i) world.Turn();
  world.prefill().SetPaused(pause);
  for (int i = 0; i < 200; ++i) world.Turn();
  EXPECT_TRUE(split.prefill.tokens.empty());
  pause.paused = false;
  world.prefill().SetPaused(pause);
  while (split.decode.tokens.size() < 5) world.Turn();
  pause.paused = true;
  world.decode().SetPaused(pause);
  for (int i = 0; i < 200; ++i) world.Turn();
  EXPECT_LT(split.decode.tokens.size(), 20u);
  pause.paused = false;
  world.decode().SetPaused(pause);
  world.RunUntilIdle();
  world.ExpectExact(split);
}

TEST(LLMEnginePauseTest, APauseOfNobodyDoesNothing) {
  EngineWorld world({});
  world.engine().SetPaused({.id = {.router_nonce = 1, .counter = 99},
                            .num_samples = 128,
                            .paused = true});
  world.Submit(MakeRequest(1, 60, 20));
  world.RunUntilIdle();
  world.ExpectAllWhole();
}

class PauseSoakTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Rounds, PauseSoakTest, testing::Range(0, 8));

FakeRank::Options RandomOptions(std::mt19937_64& random) {
  FakeRank::Options options;
  options.engine.max_running_requests = 1 + random() % 10;
  options.engine.max_chunk_tokens = 1 + random() % 90;
  options.engine.max_batched_tokens =
      options.engine.max_chunk_tokens + random() % 90;
  options.engine.pipeline_depth = 1 + random() % 3;
  options.engine.num_draft_tokens = random() % 2 * (random() % 6);
  options.model.max_context_tokens = 250;
  options.num_blocks = 4 + random() % 16;
  options.task_time = absl::Microseconds(random() % 3 * 700);
  return options;
}

// Whatever is random but the pauses' own ends is in the invariance test's soak.
TEST_P(PauseSoakTest, EveryTokenIsRightAndNobodyIsForgotten) {
  const uint64_t seed = std::random_device()() + GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  EngineWorld world(RandomOptions(random));
  for (uint64_t i = 0; i < 80; ++i) {
    if (random() % 4 == 0) {
      GenerationRequest samples =
          MakeRequest(i, 1 + random() % 200, 1 + random() % 90);
      samples.prompt_logprobs_from.reset();  // The first alone tells of it.
      world.SubmitSamples(std::move(samples), 1 + random() % 4);
    } else {
      world.Submit(MakeRequest(i, 1 + random() % 200, 1 + random() % 120));
    }
    const uint64_t turns = random() % 30;
    for (uint64_t turn = 0; turn < turns; ++turn) world.driver().Turn();
    for (int victims = 0; victims < 3; ++victims) {
      SetPaused(world, world.requests()[random() % world.requests().size()],
                random() % 3 > 0);
    }
    if (random() % 8 == 0) world.Abort(world.requests().back());
  }
  for (const Request& request : world.requests()) {
    SetPaused(world, request, false);
  }
  world.RunUntilIdle();
  world.ExpectAllExact();
}

}  // namespace
}  // namespace baton
