// Prompts of which the prefill or the decode engine has whole blocks already.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/loopback_transport.h"
#include "engine/cache_spec.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/split_world.h"

namespace baton {
namespace {

struct Pipeline {
  uint32_t depth = 1;
  uint32_t drafts = 0;
  bool maps_regions = true;
};

class PrefixTransferTest : public testing::TestWithParam<Pipeline> {
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
  static FakeRank::Options Without() {
    FakeRank::Options options = Options();
    options.engine.prefix_cache = false;
    return options;
  }
  static LoopbackEndpointOptions Endpoint() {
    return {.maps_regions = GetParam().maps_regions};
  }
};

INSTANTIATE_TEST_SUITE_P(Pipelines, PrefixTransferTest,
                         testing::Values(Pipeline{1, 0, true},
                                         Pipeline{3, 0, false},
                                         Pipeline{1, 3, false},
                                         Pipeline{3, 5, true}),
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

TEST_P(PrefixTransferTest, BothSidesTakeTheWholeBlocksFromTheirCaches) {
  for (const uint32_t prompt : {1, 63, 64, 65, 128, 129, 200}) {
    const uint32_t whole = (prompt - 1) / CacheSpec::kBlockTokens;
    SplitWorld world(Options(), Options(), Endpoint());
    const Split& first = world.Prefill(Ask(1, prompt, 20));
    world.RunUntilIdle();
    EXPECT_EQ(first.decode.outcome->decode_cached_tokens, 0u);
    const Split& second = world.Prefill(Ask(2, prompt, 40));
    world.RunUntilIdle();
    world.ExpectExact(first);
    world.ExpectExact(second);
    EXPECT_EQ(second.prefill.outcome->cached_tokens, whole * 64);
    EXPECT_EQ(second.decode.outcome->cached_tokens, 0u);
    EXPECT_EQ(second.decode.outcome->decode_cached_tokens, whole * 64);
    const KvHandle& handle = *second.prefill.handle;
    EXPECT_EQ(second.decode.outcome->transfer_bytes,
              (handle.blocks.size() - whole) * handle.block_bytes);
    if (whole > 0) {
      EXPECT_EQ(second.prefill.progress.front(), whole * 64);
    }
  }
}

TEST_P(PrefixTransferTest, EachSideMayHaveTheCacheAlone) {
  for (const bool prefill_has : {true, false}) {
    SplitWorld world(prefill_has ? Options() : Without(),
                     prefill_has ? Without() : Options(), Endpoint());
    world.Prefill(Ask(1, 200, 20));
    world.RunUntilIdle();
    const Split& second = world.Prefill(Ask(2, 200, 40));
    world.RunUntilIdle();
    for (const Split& split : world.splits()) world.ExpectExact(split);
    EXPECT_EQ(second.prefill.outcome->cached_tokens, prefill_has ? 192u : 0u);
    EXPECT_EQ(second.decode.outcome->decode_cached_tokens,
              prefill_has ? 0u : 192u);
  }
}

// The prefill side computes the answer's tokens, the decode side has them.
TEST_P(PrefixTransferTest, AFollowUpTurnPullsNoneOfTheAnswer) {
  SplitWorld world(Options(), Options(), Endpoint());
  const Split& first = world.Prefill(Ask(1, 100, 120));
  world.RunUntilIdle();
  GenerationRequest request = Ask(2, 30, 40);
  std::vector<uint32_t> tokens = first.request.token_ids;
  tokens.insert(tokens.end(), first.decode.tokens.begin(),
                first.decode.tokens.end());
  request.token_ids.insert(request.token_ids.begin(), tokens.begin(),
                           tokens.end());
  request.original_prompt_tokens = 250;
  const Split& second = world.Prefill(request);
  world.RunUntilIdle();
  world.ExpectExact(second);
  EXPECT_EQ(second.prefill.outcome->cached_tokens, 64u);
  EXPECT_EQ(second.decode.outcome->decode_cached_tokens, 192u);
}

TEST_P(PrefixTransferTest, SamplesShareWhatTheDecodeSideHas) {
  SplitWorld world(Options(), Options(), Endpoint());
  world.Prefill(Ask(1, 200, 20));
  world.RunUntilIdle();
  const Split& split = world.Prefill(Ask(7, 200, 60), 4);
  world.RunUntilIdle();
  world.ExpectExact(split);
  EXPECT_EQ(split.decode.outcome->decode_cached_tokens, 192u);
}

TEST_P(PrefixTransferTest, SaltsAreKeptApartOnBothSides) {
  SplitWorld world(Options(), Options(), Endpoint());
  for (const char* salt : {"a", "b"}) {
    for (const uint32_t cached : {0, 128}) {
      GenerationRequest request = Ask(1, 150, 20);
      request.cache_salt = salt;
      const Split& split = world.Prefill(request);
      world.RunUntilIdle();
      world.ExpectExact(split);
      EXPECT_EQ(split.prefill.outcome->cached_tokens, cached);
      EXPECT_EQ(split.decode.outcome->decode_cached_tokens, cached);
    }
  }
}

TEST_P(PrefixTransferTest, AHandleOfAnotherPromptOrSaltIsRefused) {
  SplitWorld world(Options(), Options(), Endpoint());
  for (const uint32_t prompt : {100, 128}) {
    Split& split = world.Prefill(Ask(1, prompt, 5));
    while (!split.prefill.handle.has_value()) world.driver().Turn();
    const GenerationRequest good = split.request;
    for (const uint32_t wrong : {0u, 63u, 64u, prompt - 1}) {
      split.request = good;
      split.request.token_ids[wrong] ^= 1;
      EXPECT_TRUE(absl::IsInvalidArgument(world.Decode(split))) << wrong;
    }
    split.request = good;
    split.request.cache_salt = "other";
    EXPECT_TRUE(absl::IsInvalidArgument(world.Decode(split)));
    // Whoever bypasses the cache is bound to the prompt as well.
    split.request = good;
    split.request.bypass_prefix_cache = true;
    split.request.token_ids[0] ^= 1;
    EXPECT_TRUE(absl::IsInvalidArgument(world.Decode(split)));
    split.request = good;
    split.decode_submitted = false;
    world.RunUntilIdle();
    world.ExpectExact(split);
  }
}

// 200 tokens, of four blocks; the decode side has three.
TEST_P(PrefixTransferTest, OnlyBlocksThatATransferWritesCountAsImporting) {
  SplitWorld world(Options(), Options(), Endpoint());
  world.Prefill(Ask(1, 200, 20));
  world.RunUntilIdle();
  for (uint64_t counter = 2; counter <= 5; ++counter) {
    world.Prefill(Ask(counter, 200, 20));
  }
  uint32_t most = 0;
  while (!world.idle()) {
    world.Turn();
    const EngineLoad load = world.decode().load();
    EXPECT_EQ(load.importing_blocks, load.importing_requests);
    most = std::max(most, load.importing_blocks);
    for (const EngineLoad& side : {load, world.prefill().load()}) {
      EXPECT_LE(
          side.exported_blocks + side.importing_blocks + side.deferred_blocks,
          side.total_blocks - side.free_blocks);
    }
  }
  EXPECT_GT(most, 1u);
}

TEST_P(PrefixTransferTest, AnImportThatFailsLeavesNothingToFind) {
  SplitWorld world(Options(), Options(), Endpoint());
  Split& split = world.Prefill(Ask(1, 200, 20));
  while (world.decode().load().importing_blocks == 0) world.Turn();
  world.decode().Abort(split.request.id, std::nullopt);
  world.prefill().Abort(split.request.id, std::nullopt);
  world.RunUntilIdle();
  EXPECT_EQ(world.decode().load().cached_blocks, 0u);
  const Split& again = world.Prefill(Ask(2, 200, 20));
  world.RunUntilIdle();
  world.ExpectExact(again);
  EXPECT_EQ(again.decode.outcome->decode_cached_tokens, 0u);
}

}  // namespace
}  // namespace baton
