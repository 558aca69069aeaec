// Several samples of a prompt that another engine has computed: the first one
// imports it, and the others have it from there.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/loopback_transport.h"
#include "engine/cache_spec.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/split_world.h"

namespace baton {
namespace {

struct Pipeline {
  uint32_t depth = 1;
  uint32_t drafts = 0;
};

class SplitSamplesTest : public testing::TestWithParam<Pipeline> {
 protected:
  static FakeRank::Options Options() {
    FakeRank::Options options;
    options.engine.pipeline_depth = GetParam().depth;
    options.engine.num_draft_tokens = GetParam().drafts;
    options.engine.max_chunk_tokens = 50;
    options.task_time = absl::Microseconds(300);
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Pipelines, SplitSamplesTest,
                         testing::Values(Pipeline{1, 0}, Pipeline{3, 0},
                                         Pipeline{1, 3}, Pipeline{3, 5}),
                         [](const auto& tested) {
                           return "Depth" + std::to_string(tested.param.depth) +
                                  "Drafts" +
                                  std::to_string(tested.param.drafts);
                         });

// An odd counter: not greedy, so that samples differ.
GenerationRequest Sampled(uint32_t prompt, uint32_t max_tokens) {
  return MakeRequest(7, prompt, max_tokens);
}

uint32_t WholeBlocks(uint32_t prompt) {
  return (prompt - 1) / CacheSpec::kBlockTokens * CacheSpec::kBlockTokens;
}

TEST_P(SplitSamplesTest, TheyAreThoseOfRequestsOfTheirOwn) {
  for (const bool maps_regions : {true, false}) {
    for (const uint32_t prompt : {1, 63, 64, 65, 127, 128, 129, 200}) {
      SplitWorld world(Options(), Options(), {.maps_regions = maps_regions});
      const Split& split = world.Prefill(Sampled(prompt, 40), 5);
      world.RunUntilIdle();
      world.ExpectExact(split);
      EXPECT_GT(split.decode.outcome->transfer_bytes, 0u);
      for (const RecordingTokenSink& other : split.others) {
        EXPECT_EQ(other.code(), absl::StatusCode::kOk);
        EXPECT_NE(other.tokens, split.decode.tokens);
        EXPECT_EQ(other.outcome->cached_tokens, WholeBlocks(prompt));
        EXPECT_EQ(other.outcome->transfer_bytes, 0u);
      }
    }
  }
}

TEST_P(SplitSamplesTest, TheirWholeBlocksAreComputedByNobody) {
  constexpr uint32_t kPrompt = 200, kOthers = 4;
  SplitWorld world(Options(), Options());
  const Split& split = world.Prefill(Sampled(kPrompt, 2), 1 + kOthers);
  world.RunUntilIdle();
  world.ExpectExact(split);
  uint64_t prompt_rows = 0;
  for (const StepStats& step : world.decode_rank().steps()) {
    if (step.prefill) prompt_rows += step.rows;
  }
  EXPECT_EQ(prompt_rows, kOthers * (kPrompt - WholeBlocks(kPrompt)));
}

// A drafter's row without the state before it would be another draft.
TEST_P(SplitSamplesTest, TheirDraftsGoOnFromTheImportedBlocks) {
  for (const uint32_t prompt : {64, 65, 128, 150}) {
    FakeRank::Options options = Options();
    options.model.right_drafts = 256;
    SplitWorld world(options, options);
    GenerationRequest request = Sampled(prompt, 40);
    request.sampling.temperature = 0;
    const Split& split = world.Prefill(request, 3);
    world.RunUntilIdle();
    world.ExpectExact(split);
    uint64_t verified = 0, accepted = 0;
    for (const StepStats& step : world.decode_rank().steps()) {
      for (uint32_t i = 0; i < kMaxDraftTokens; ++i) {
        verified += step.drafts_verified[i];
        accepted += step.drafts_accepted[i];
      }
    }
    EXPECT_EQ(verified > 0, GetParam().drafts > 0);
    EXPECT_EQ(accepted, verified);
  }
}

TEST_P(SplitSamplesTest, TokensOfAnEarlierAttemptAreSharedToo) {
  SplitWorld world(Options(), Options());
  GenerationRequest request = Sampled(200, 90);
  request.original_prompt_tokens = 130;
  request.sample_index = 3;
  const Split& split = world.Prefill(request, 3);
  world.RunUntilIdle();
  world.ExpectExact(split);
  EXPECT_EQ(split.others[1].first_token_index, 70u);
  EXPECT_EQ(split.others[1].outcome->cached_tokens, 192u);
}

TEST_P(SplitSamplesTest, NoneOfThemTellsOfThePromptHere) {
  SplitWorld world(Options(), Options());
  GenerationRequest request = Sampled(150, 20);
  request.prompt_logprobs_from = 10;
  const Split& split = world.Prefill(request, 3);
  world.RunUntilIdle();
  EXPECT_EQ(split.prefill.prompt_logprobs.size(), 140u);
  world.ExpectExact(split);
}

TEST_P(SplitSamplesTest, AFirstTokenThatEndsTheFirstLeavesTheOthersThePrompt) {
  for (const bool caches : {false, true}) {
    FakeRank::Options options = Options();
    options.engine.prefix_cache = caches;
    SplitWorld world(options, options);
    GenerationRequest request = Sampled(150, 20);
    request.stop_token_ids = {ExpectedOf({}, request).tokens[0]};
    const Split& split = world.Prefill(request, 4);
    world.RunUntilIdle();
    world.ExpectExact(split);
    EXPECT_EQ(split.decode.tokens.size(), 1u);
    // One of them computes it, if nothing has kept it.
    EXPECT_EQ(split.others[0].outcome->cached_tokens, caches ? 128u : 0u);
    EXPECT_EQ(split.others[1].outcome->cached_tokens, 128u);
  }
}

// The other one has computed the prompt when the first is admitted.
TEST_P(SplitSamplesTest, AFirstThatIsBehindImportsIntoBlocksOfItsOwn) {
  FakeRank::Options options = Options();
  options.engine.prefix_cache = false;
  SplitWorld world(Options(), options);
  const Split& split = world.Prefill(Sampled(150, 40), 2);
  while (!split.decode_submitted) world.Turn();
  PauseCommand pause = {.id = split.request.id, .paused = true};
  world.decode().SetPaused(pause);
  while (split.others[0].tokens.empty()) world.Turn();
  pause.paused = false;
  world.decode().SetPaused(pause);
  world.RunUntilIdle();
  world.ExpectExact(split);
  EXPECT_EQ(split.decode.outcome->cached_tokens, 0u);
}

TEST_P(SplitSamplesTest, AbortsAtAnyTurnLeaveTheOthersExact) {
  const std::vector<std::optional<uint32_t>> victims = {0, 1, 2, std::nullopt};
  for (const std::optional<uint32_t> victim : victims) {
    for (uint32_t turns = 0; turns < 40; ++turns) {
      SplitWorld world(Options(), Options(), {.maps_regions = turns % 2 == 0});
      Split& split = world.Prefill(Sampled(150, 20), 3);
      while (!split.decode_submitted) world.Turn();
      for (uint32_t i = 0; i < turns; ++i) world.Turn();
      world.decode().Abort(split.request.id, victim);
      world.RunUntilIdle();
      EXPECT_EQ(split.decode.code(), victim.value_or(0) == 0
                                         ? absl::StatusCode::kCancelled
                                         : absl::StatusCode::kOk);
      if (victim.value_or(0) != 0) world.ExpectFirstExact(split);
      for (uint32_t i = 0; i < 2; ++i) {
        world.ExpectOtherExact(split, i);
        EXPECT_EQ(split.others[i].outcome->status.ok(),
                  victim.has_value() && *victim != i + 1);
      }
    }
  }
}

TEST_P(SplitSamplesTest, PreemptionsOfAnySampleAtAnyTurnChangeNothing) {
  for (uint32_t victim = 0; victim < 3; ++victim) {
    uint32_t preempted = 0;
    for (uint32_t turns = 0; turns < 40; ++turns) {
      SplitWorld world(Options(), Options());
      Split& split = world.Prefill(Sampled(150, 20), 3);
      while (!split.decode_submitted) world.Turn();
      for (uint32_t i = 0; i < turns; ++i) world.Turn();
      preempted += world.decode().Preempt(split.request.id, victim);
      world.RunUntilIdle();
      world.ExpectExact(split);
    }
    EXPECT_GT(preempted, 10u);
  }
}

TEST_P(SplitSamplesTest, ADeadPrefillServerFailsTheFirstAlone) {
  uint32_t failed = 0;
  for (int turns = 0; turns < 12; ++turns) {
    FakeRank::Options prefill = Options();
    prefill.transfer.lease = absl::Seconds(1);
    prefill.transfer.drain_timeout = absl::Seconds(1);
    SplitWorld world(prefill, Options());
    Split& split = world.Prefill(Sampled(200, 10), 3);
    while (!split.decode_submitted) world.Turn();
    for (int i = 0; i < turns; ++i) world.Turn();
    const bool imported = !split.decode.tokens.empty();
    world.network().Kill("p", true);
    world.RunUntilIdle();
    EXPECT_EQ(split.decode.code(),
              imported ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
    failed += !imported;
    for (uint32_t i = 0; i < 2; ++i) {
      world.ExpectOtherExact(split, i);
      EXPECT_EQ(split.others[i].code(), absl::StatusCode::kOk);
    }
  }
  EXPECT_GT(failed, 0u);
}

TEST_P(SplitSamplesTest, PoolsTooSmallForAllChangeNothing) {
  uint32_t preemptions = 0;
  for (const uint32_t blocks : {5, 6, 8, 11}) {
    FakeRank::Options small = Options();
    small.num_blocks = blocks;
    SplitWorld world(Options(), small);
    for (uint64_t i = 0; i < 3; ++i) {
      world.Prefill(MakeRequest(2 * i + 1, 100 + 15 * i, 120), 4);
    }
    world.RunUntilIdle();
    for (const Split& split : world.splits()) world.ExpectExact(split);
    for (const StepStats& step : world.decode_rank().steps()) {
      preemptions += step.preemptions;
    }
  }
  EXPECT_GT(preemptions, 0u);
}

}  // namespace
}  // namespace baton
