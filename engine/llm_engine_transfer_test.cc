// Requests over a prefill and a decode engine.
#include <algorithm>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/loopback_transport.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/split_world.h"

namespace baton {
namespace {

FakeRank::Options ChunksOf(uint32_t chunk) {
  FakeRank::Options options;
  options.engine.max_chunk_tokens = chunk;
  options.engine.max_batched_tokens = std::max(chunk, 100u);
  return options;
}

TEST(LLMEngineTransferTest, SplitRequestsGiveTheTokensOfWholeOnes) {
  for (const LoopbackEndpointOptions endpoint :
       {LoopbackEndpointOptions{.maps_regions = true},
        LoopbackEndpointOptions{.maps_regions = false}}) {
    for (uint32_t chunk : {1, 7, 64, 65, 512}) {
      SplitWorld world(ChunksOf(chunk), {}, endpoint);
      for (uint32_t length : {1, 63, 64, 65, 128, 200}) {
        world.Prefill(MakeRequest(length, length, 20));
      }
      world.RunUntilIdle();
      for (const Split& split : world.splits()) {
        world.ExpectExact(split);
        EXPECT_EQ(split.prefill.progress.back(),
                  split.request.token_ids.size());
        EXPECT_EQ(split.decode.outcome->transfer_bytes,
                  split.prefill.handle->blocks.size() *
                      split.prefill.handle->block_bytes);
      }
    }
  }
}

TEST(LLMEngineTransferTest, AFirstTokenThatIsTheLastEndsBothSides) {
  SplitWorld world({}, {});
  const Split& split = world.Prefill(MakeRequest(3, 70, 1));
  world.RunUntilIdle();
  world.ExpectExact(split);
  EXPECT_EQ(split.decode.outcome->reason, FinishReason::kLength);
}

TEST(LLMEngineTransferTest, AResumedRequestIsSplitLikeAnyOther) {
  SplitWorld world({}, {});
  GenerationRequest request = MakeRequest(3, 70, 20);
  const ExpectedTokens whole = ExpectedOf({}, request);
  request.token_ids.insert(request.token_ids.end(), whole.tokens.begin(),
                           whole.tokens.begin() + 9);
  const Split& split = world.Prefill(request);
  world.RunUntilIdle();
  world.ExpectExact(split);
  EXPECT_EQ(split.prefill.first_token_index, 9u);
  EXPECT_EQ(split.decode.first_token_index, 9u);
}

TEST(LLMEngineTransferTest, APreemptionAfterTheImportIsRecomputedThere) {
  for (uint32_t before = 1; before < 40; before += 3) {
    SplitWorld world({}, {});
    const Split& split = world.Prefill(MakeRequest(5, 100, 40));
    bool preempted = false;
    while (!preempted) {
      world.Turn();
      preempted = split.decode.tokens.size() == before &&
                  world.decode().Preempt(split.request.id, 0);
    }
    world.RunUntilIdle();
    world.ExpectExact(split);
  }
}

TEST(LLMEngineTransferTest, ExportsAndImportsCannotBePreempted) {
  SplitWorld world(ChunksOf(10), {});
  const Split& split = world.Prefill(MakeRequest(5, 100, 4));
  while (split.decode.tokens.empty()) {
    EXPECT_FALSE(world.prefill().Preempt(split.request.id, 0));
    EXPECT_FALSE(world.decode().Preempt(split.request.id, 0));
    world.Turn();
  }
  world.RunUntilIdle();
}

TEST(LLMEngineTransferTest, AFullDecodePoolHoldsTransfersBack) {
  FakeRank::Options small;
  small.num_blocks = 4;
  SplitWorld world({}, small);
  Split& first = world.Prefill(MakeRequest(1, 150, 40));
  Split& second = world.Prefill(MakeRequest(2, 150, 10));
  while (second.prefill.tokens.empty()) world.Turn();
  for (int i = 0; i < 10; ++i) world.Turn();
  EXPECT_EQ(world.decode().load().importing_blocks, 0u);
  EXPECT_EQ(world.decode().load().waiting_requests, 1u);
  EXPECT_EQ(world.prefill().load().exported_blocks, 3u);
  world.RunUntilIdle();
  world.ExpectExact(first);
  world.ExpectExact(second);
}

TEST(LLMEngineTransferTest, HandlesThatDoNotFitAreRefused) {
  SplitWorld world({}, {});
  Split& split = world.Prefill(MakeRequest(1, 100, 5));
  while (!split.prefill.handle.has_value()) world.driver().Turn();
  const KvHandle good = *split.prefill.handle;
  const auto code = [&](const KvHandle& handle) {
    split.prefill.handle = handle;
    return world.Decode(split).code();
  };
  KvHandle handle = good;
  handle.fingerprint = "another";
  EXPECT_EQ(code(handle), absl::StatusCode::kFailedPrecondition);
  handle = good;
  handle.num_tokens = 99;
  EXPECT_EQ(code(handle), absl::StatusCode::kInvalidArgument);
  handle = good;
  handle.blocks.pop_back();
  EXPECT_EQ(code(handle), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(good), absl::StatusCode::kOk);
  world.RunUntilIdle();
}

TEST(LLMEngineTransferTest, BlocksOfAnExportStayUntilTheTransferHasEnded) {
  SplitWorld world(ChunksOf(40), {});
  Split& split = world.Prefill(MakeRequest(1, 100, 5));
  while (split.prefill.progress.empty()) world.driver().Turn();
  world.prefill().Abort(split.request.id, std::nullopt);
  for (int i = 0; i < 5; ++i) {  // The agent isn't polled.
    world.prefill().Advance();
    world.prefill_rank().stream().Poll();
    EXPECT_EQ(world.prefill().load().exported_blocks, 2u);
    EXPECT_FALSE(split.prefill.finished());
  }
  while (!split.prefill.finished()) world.driver().Turn();
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(split.prefill.outcome->ended_in, RequestActivity::kPrefill);
  EXPECT_EQ(world.prefill().load().exported_blocks, 0u);
}

TEST(LLMEngineTransferTest, EndUnfinishedKeepsWhatWaitsForItsReaderAlone) {
  SplitWorld world(ChunksOf(40), {});
  Split& complete = world.Prefill(MakeRequest(1, 100, 20));
  while (complete.prefill.tokens.empty()) world.driver().Turn();
  Split& partial = world.Prefill(MakeRequest(2, 200, 20));
  RecordingTokenSink local;
  CHECK_OK(world.prefill().Submit(MakeRequest(3, 10, 200), &local));
  while (partial.prefill.progress.empty()) world.driver().Turn();
  world.prefill().EndUnfinished(absl::UnavailableError("no group"));
  EXPECT_EQ(local.code(), absl::StatusCode::kUnavailable);
  // Its reader may be at its blocks.
  EXPECT_FALSE(partial.prefill.finished());
  EXPECT_EQ(world.prefill().load().exporting_requests, 2u);
  world.RunUntilIdle();
  world.ExpectExact(complete);
  EXPECT_EQ(partial.prefill.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(partial.prefill.outcome->status.message(), "no group");
  EXPECT_NE(partial.decode.code(), absl::StatusCode::kOk);
}

TEST(LLMEngineTransferTest, EndUnfinishedEndsImportsOnceTheyAreCancelled) {
  SplitWorld world({}, {});
  Split& split = world.Prefill(MakeRequest(1, 100, 20));
  while (world.decode().load().importing_requests == 0) world.Turn();
  world.decode().EndUnfinished(absl::UnavailableError("no group"));
  EXPECT_FALSE(split.decode.finished());
  world.RunUntilIdle();
  EXPECT_EQ(split.decode.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(split.decode.tokens.empty());
}

TEST(LLMEngineTransferTest, ALeaseThatNobodyTakesRunsOut) {
  FakeRank::Options options;
  options.transfer.lease = absl::Seconds(3);
  SplitWorld world(options, {});
  Split& split = world.Prefill(MakeRequest(1, 100, 5));
  ASSERT_TRUE(
      world.driver().RunUntil([&] { return split.prefill.finished(); }));
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(split.prefill.tokens.size(), 1u);
  CHECK_OK(world.Decode(split));  // Too late.
  world.RunUntilIdle();
  EXPECT_EQ(split.decode.code(), absl::StatusCode::kAborted);
}

TEST(LLMEngineTransferTest, ADeadlineOfTheRequestsOwnIsToldAsOne) {
  SplitWorld world({}, {});
  GenerationRequest request = MakeRequest(1, 100, 5);
  request.deadline = world.clock().Now() + absl::Seconds(1);
  Split& split = world.Prefill(request);
  ASSERT_TRUE(
      world.driver().RunUntil([&] { return split.prefill.finished(); }));
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(LLMEngineTransferTest, NanOnThePrefillSideFailsTheRequestOnBoth) {
  FakeRank::Options options;
  options.model.poison_token = 63;
  SplitWorld world(options, options);
  GenerationRequest request = MakeRequest(1, 100, 5);
  request.token_ids.back() = 63;
  Split& split = world.Prefill(request);
  Split& other = world.Prefill(MakeRequest(2, 100, 1));
  world.RunUntilIdle();
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(split.decode.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(split.decode.tokens.empty());
  world.ExpectExact(other);
}

TEST(LLMEngineTransferTest, ADeadPrefillServerFailsItsImportsAlone) {
  for (int turns = 1; turns < 12; ++turns) {
    SplitWorld world(ChunksOf(32), {});
    Split& split = world.Prefill(MakeRequest(1, 200, 5));
    while (!split.decode_submitted) world.Turn();
    for (int i = 0; i < turns; ++i) world.Turn();
    const bool imported = !split.decode.tokens.empty();
    world.network().Kill("p", true);
    while (!split.decode.finished()) world.Turn();
    EXPECT_EQ(split.decode.code(),
              imported ? absl::StatusCode::kOk : absl::StatusCode::kAborted);
    world.RunUntilIdle();
  }
}

TEST(LLMEngineTransferTest, AbortsInEveryPhaseLeaveNoBlockOnEitherSide) {
  std::set<std::string> phases;
  for (const bool abort_prefill : {true, false}) {
    for (int turns = 0; turns < 60; ++turns) {
      FakeRank::Options prefill = ChunksOf(16);
      prefill.engine.max_batched_tokens = 32;
      SplitWorld world(prefill, {.num_blocks = 10},
                       {.maps_regions = turns % 2 == 0});
      Split& other = world.Prefill(MakeRequest(1, 90, 12));
      Split& victim = world.Prefill(MakeRequest(2, 120, 12));
      for (int i = 0; i < turns; ++i) world.Turn();
      LLMEngine& engine = abort_prefill ? world.prefill() : world.decode();
      const EngineLoad load = engine.load();
      engine.Abort(victim.request.id, std::nullopt);
      world.RunUntilIdle();
      world.ExpectExact(other);
      RecordingTokenSink& sink = abort_prefill ? victim.prefill : victim.decode;
      if (sink.code() != absl::StatusCode::kCancelled) continue;
      phases.insert(absl::StrCat(abort_prefill ? "prefill" : "decode",
                                 " exporting ", load.exporting_requests,
                                 " importing ", load.importing_requests,
                                 " tokens ", !sink.tokens.empty()));
    }
  }
  for (const std::string& phase : phases) std::cerr << phase << '\n';
  EXPECT_GE(phases.size(), 5u);
}

class LLMEngineTransferSoakTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Rounds, LLMEngineTransferSoakTest,
                         testing::Range(0, 10));

void ExpectPrefix(const std::vector<uint32_t>& tokens,
                  const std::vector<uint32_t>& expected) {
  ASSERT_LE(tokens.size(), expected.size());
  for (size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], expected[i]);
}

TEST_P(LLMEngineTransferSoakTest, LossDelayAndAbortsNeverMakeAWrongToken) {
  const uint64_t seed = std::random_device()() + GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  FakeRank::Options options = ChunksOf(1 + random() % 100);
  options.transfer.lease = absl::Seconds(2);
  options.num_blocks = 8 + random() % 20;
  FakeRank::Options decode = options;
  decode.num_blocks = 6 + random() % 10;
  SplitWorld world(options, decode, {.maps_regions = random() % 2 == 0});
  world.network().set_hook([&random](auto, auto, auto) {
    return LoopbackFate{
        .copies = static_cast<uint32_t>(random() % 20 == 0 ? random() % 3 : 1),
        .delay_polls = static_cast<uint32_t>(random() % 4)};
  });
  for (uint64_t i = 0; i < 60; ++i) {
    world.Prefill(MakeRequest(i, 1 + random() % 250, 1 + random() % 60));
    const uint64_t turns = random() % 40;
    for (uint64_t turn = 0; turn < turns; ++turn) world.Turn();
    const Split& victim = world.splits()[random() % (i + 1)];
    LLMEngine& side = random() % 2 == 0 ? world.prefill() : world.decode();
    if (random() % 4 == 0) side.Abort(victim.request.id, std::nullopt);
    if (random() % 4 == 0) side.Preempt(victim.request.id, 0);
  }
  world.RunUntilIdle();
  int finished = 0;
  for (const Split& split : world.splits()) {
    const ExpectedTokens expected = ExpectedOf(options.model, split.request);
    ExpectPrefix(split.decode.tokens, expected.tokens);
    ExpectPrefix(split.prefill.tokens, expected.tokens);
    if (!split.decode_submitted || !split.decode.outcome->status.ok()) continue;
    ASSERT_EQ(split.decode.tokens, expected.tokens);
    ++finished;
  }
  EXPECT_GT(finished, 0);
}

}  // namespace
}  // namespace baton
