// The same request gives the same tokens and log-probabilities, whatever else
// the engine does meanwhile.
#include <iostream>
#include <optional>
#include <random>
#include <set>

#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_world.h"
#include "tests/fakes/fake_rank.h"

namespace baton {
namespace {

TEST(LLMEngineInvarianceTest, NoBatchChangesAToken) {
  for (uint64_t size : {1, 2, 5, 32}) {
    EngineWorld world({.num_blocks = 128});
    for (uint64_t i = 0; i < size; ++i) {
      world.Submit(MakeRequest(i, 1 + i * 29 % 150, 1 + i * 7 % 40));
    }
    world.RunUntilIdle();
    world.ExpectAllWhole();
  }
}

TEST(LLMEngineInvarianceTest, NoChunkSizeChangesAToken) {
  for (uint32_t chunk : {1, 7, 64, 65, 512}) {
    EngineWorld world({.engine = {.max_batched_tokens = std::max(chunk, 100u),
                                  .max_chunk_tokens = chunk}});
    for (uint64_t i = 0; i < 4; ++i) {
      world.Submit(MakeRequest(i, 60 + i * 70, 10));
    }
    world.RunUntilIdle();
    world.ExpectAllWhole();
  }
}

TEST(LLMEngineInvarianceTest, NeitherDepthNorDraftsChangeAToken) {
  for (uint32_t depth = 1; depth <= kMaxPipelineDepth; ++depth) {
    for (uint32_t drafts : {0u, 1u, kMaxDraftTokens}) {
      EngineWorld world(
          {.engine = {.pipeline_depth = depth, .num_draft_tokens = drafts},
           .num_blocks = 128,
           .task_time = absl::Microseconds(700)});
      for (uint64_t i = 0; i < 12; ++i) {
        world.Submit(MakeRequest(i, 1 + i * 29 % 150, 40));
      }
      world.RunUntilIdle();
      world.ExpectAllWhole();
    }
  }
}

TEST(LLMEngineInvarianceTest, APreemptionBeforeAnyTokenChangesNone) {
  constexpr uint32_t kTokens = 70;
  uint32_t preempted = 0;
  for (uint32_t before = 0; before < kTokens; ++before) {
    EngineWorld world(
        {.engine = {.max_batched_tokens = 50, .max_chunk_tokens = 50}});
    const EngineWorld::Request& victim =
        world.Submit(MakeRequest(1, 60, kTokens));
    world.Submit(MakeRequest(2, 30, 20));
    CHECK(world.driver().RunUntil([&] {
      return victim.sink.tokens.size() == before &&
             world.engine().Preempt(victim.request.id, 0);
    }));
    ++preempted;
    world.RunUntilIdle();
    world.ExpectAllWhole();
  }
  std::cerr << "preempted before " << preempted << " indices\n";
}

TEST(LLMEngineInvarianceTest, APreemptionInAPromptTellsItsLogprobsOnce) {
  for (size_t told = 1; told < 99; told += 7) {
    EngineWorld world({.engine = {.max_running_requests = 3,
                                  .max_batched_tokens = 50,
                                  .max_chunk_tokens = 50}});
    GenerationRequest request = MakeRequest(5, 100, 5);
    request.prompt_logprobs_from = 0;
    const EngineWorld::Request& victim = world.Submit(request);
    world.Submit(MakeRequest(2, 30, 20));
    CHECK(world.driver().RunUntil([&] {
      return victim.sink.prompt_logprobs.size() >= told &&
             world.engine().Preempt(victim.request.id, 0);
    }));
    EXPECT_TRUE(victim.sink.tokens.empty());
    world.RunUntilIdle();
    world.ExpectAllWhole();
  }
}

TEST(LLMEngineInvarianceTest, PoolsTooSmallForAllPreemptAndChangeNothing) {
  for (uint32_t blocks : {4, 5, 6, 8}) {
    EngineWorld world(
        {.engine = {.max_batched_tokens = 64, .max_chunk_tokens = 40},
         .num_blocks = blocks});
    for (uint64_t i = 0; i < 8; ++i) {
      world.Submit(MakeRequest(i, 5 + i * 6, 150));
    }
    world.RunUntilIdle();
    world.ExpectAllWhole();
    EXPECT_GT(world.NumPreemptions(), 0u);
  }
}

TEST(LLMEngineInvarianceTest, AbortsInEveryPhaseLeaveNoBlockAndNoTrace) {
  // Turns after which the victim is aborted: queued, in its prompt, decoding.
  std::set<size_t> tokens_at_abort;
  for (int turns = 0; turns < 40; ++turns) {
    EngineWorld world(
        {.engine = {.max_batched_tokens = 16, .max_chunk_tokens = 8}});
    world.Submit(MakeRequest(1, 30, 30));
    EngineWorld::Request& victim = world.Submit(MakeRequest(2, 50, 30));
    for (int i = 0; i < turns; ++i) world.driver().Turn();
    world.engine().Abort(victim.request.id, std::nullopt);
    world.RunUntilIdle();
    tokens_at_abort.insert(victim.sink.tokens.size());
    EXPECT_EQ(victim.sink.code(), absl::StatusCode::kCancelled);
    world.requests().pop_back();
    world.ExpectAllWhole();
  }
  EXPECT_GT(tokens_at_abort.size(), 3u);
}

// All at once: what clients, the clock and the scheduler can do.
class LLMEngineSoakTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Rounds, LLMEngineSoakTest, testing::Range(0, 12));

FakeRank::Options RandomOptions(std::mt19937_64& random) {
  FakeRank::Options options;
  options.engine.max_running_requests = 1 + random() % 10;
  options.engine.max_chunk_tokens = 1 + random() % 90;
  options.engine.max_batched_tokens =
      options.engine.max_chunk_tokens + random() % 90;
  options.engine.decode_steps_per_prefill = random() % 4;
  options.engine.pipeline_depth = 1 + random() % 3;
  options.engine.num_draft_tokens = random() % 2 * (random() % 6);
  options.model.right_drafts = random() % 257;
  options.model.max_context_tokens = 250;
  options.num_blocks = 4 + random() % 16;
  options.task_time = absl::Microseconds(random() % 3 * 700);
  return options;
}

GenerationRequest RandomRequest(std::mt19937_64& random, uint64_t counter,
                                absl::Time now) {
  GenerationRequest request =
      MakeRequest(counter, 1 + random() % 200, 1 + random() % 120);
  request.sample_index = random() % 3;
  if (random() % 3 == 0) {
    for (int i = 0; i < 3; ++i) request.stop_token_ids.push_back(random() % 64);
    request.min_tokens = random() % 2 * (random() % (request.max_tokens + 1));
  }
  if (random() % 4 == 0) {
    request.deadline = now + absl::Milliseconds(random() % 200);
  }
  return request;
}

TEST_P(LLMEngineSoakTest, EveryTokenThatIsSentIsRightAndAllBlocksComeBack) {
  const uint64_t seed = std::random_device()() + GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const FakeRank::Options options = RandomOptions(random);
  EngineWorld world(options);
  for (uint64_t i = 0; i < 150; ++i) {
    const EngineWorld::Request& added =
        world.Submit(RandomRequest(random, i, world.clock().Now()));
    const uint64_t turns = random() % 30;
    for (uint64_t turn = 0; turn < turns; ++turn) world.driver().Turn();
    const EngineWorld::Request& other = world.requests()[random() % (i + 1)];
    switch (random() % 5) {
      case 0:
        world.engine().Abort(added.request.id, std::nullopt);
        break;
      case 1:
        world.engine().Abort(other.request.id, other.request.sample_index);
        break;
      case 2:
        world.engine().Preempt(other.request.id, other.request.sample_index);
        break;
      default:
        break;
    }
  }
  world.RunUntilIdle();
  for (const EngineWorld::Request& done : world.requests()) {
    world.ExpectExact(done);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace baton
