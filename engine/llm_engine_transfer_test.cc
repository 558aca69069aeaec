// A prefill and a decode engine, with real transfer agents over a network
// inside the process.
#include <algorithm>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/loopback_transport.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

// One request over both engines: what a router does.
struct Split {
  GenerationRequest request;
  RecordingTokenSink prefill;
  RecordingTokenSink decode;
  bool decode_submitted = false;
};

class Pools {
 public:
  Pools(const FakeRank::Options& prefill_options,
        const FakeRank::Options& decode_options,
        LoopbackEndpointOptions endpoint = {})
      : options_(decode_options),
        prefill_(prefill_options, &clock_,
                 network_.CreateEndpoint("p", endpoint)),
        decode_(decode_options, &clock_,
                network_.CreateEndpoint("d", endpoint)) {
    prefill_.AddTo(&driver_);
    decode_.AddTo(&driver_);
  }

  Split& Prefill(const GenerationRequest& request) {
    Split& split = splits_.emplace_back();
    split.request = request;
    GenerationRequest prefill = request;
    prefill.mode = RequestMode::kPrefill;
    CHECK_OK(prefill_.engine().Submit(prefill, &split.prefill));
    return split;
  }

  absl::Status Decode(Split& split) {
    GenerationRequest decode = split.request;
    decode.mode = RequestMode::kDecode;
    decode.kv_handle = split.prefill.handle.value();
    split.decode_submitted = true;
    return decode_.engine().Submit(decode, &split.decode);
  }

  // Passes handles on as they come.
  void Turn() {
    driver_.Turn();
    for (Split& split : splits_) {
      if (split.decode_submitted || !split.prefill.handle.has_value()) continue;
      CHECK_OK(Decode(split));
    }
  }

  bool idle() { return prefill_.engine().idle() && decode_.engine().idle(); }

  void RunUntilIdle() {
    for (int i = 0; i < 1000000 && !idle(); ++i) Turn();
    ASSERT_TRUE(idle());
    for (FakeRank* rank : {&prefill_, &decode_}) {
      const EngineLoad load = rank->engine().load();
      EXPECT_EQ(load.free_blocks, load.total_blocks);
      EXPECT_EQ(load.exporting_requests + load.importing_requests, 0u);
    }
  }

  void ExpectExact(const Split& split) {
    const ExpectedTokens expected = ExpectedOf(options_.model, split.request);
    EXPECT_EQ(split.decode.tokens, expected.tokens) << split.request.id;
    EXPECT_EQ(split.decode.logprobs, expected.logprobs) << split.request.id;
    EXPECT_EQ(split.decode.top, expected.top) << split.request.id;
    EXPECT_EQ(split.prefill.tokens, std::vector{expected.tokens.front()});
    EXPECT_EQ(split.prefill.top.at(0), expected.top.at(0));
    EXPECT_EQ(split.prefill.prompt_logprobs, expected.prompt_logprobs);
    EXPECT_EQ(split.prefill.prompt_top, expected.prompt_top);
    EXPECT_TRUE(split.decode.prompt_logprobs.empty());
    EXPECT_EQ(split.prefill.code(), absl::StatusCode::kOk);
    EXPECT_EQ(split.decode.code(), absl::StatusCode::kOk);
  }

  LLMEngine& prefill() { return prefill_.engine(); }
  LLMEngine& decode() { return decode_.engine(); }
  FakeRank& prefill_rank() { return prefill_; }
  EngineDriver& driver() { return driver_; }
  LoopbackNetwork& network() { return network_; }
  SimulatedClock& clock() { return clock_; }
  std::deque<Split>& splits() { return splits_; }

 private:
  const FakeRank::Options options_;
  SimulatedClock clock_;
  LoopbackNetwork network_;
  EngineDriver driver_{&clock_};
  std::deque<Split> splits_;
  FakeRank prefill_;
  FakeRank decode_;
};

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
      Pools pools(ChunksOf(chunk), {}, endpoint);
      for (uint32_t length : {1, 63, 64, 65, 128, 200}) {
        pools.Prefill(MakeRequest(length, length, 20));
      }
      pools.RunUntilIdle();
      for (const Split& split : pools.splits()) {
        pools.ExpectExact(split);
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
  Pools pools({}, {});
  const Split& split = pools.Prefill(MakeRequest(3, 70, 1));
  pools.RunUntilIdle();
  pools.ExpectExact(split);
  EXPECT_EQ(split.decode.outcome->reason, FinishReason::kLength);
}

TEST(LLMEngineTransferTest, AResumedRequestIsSplitLikeAnyOther) {
  Pools pools({}, {});
  GenerationRequest request = MakeRequest(3, 70, 20);
  const ExpectedTokens whole = ExpectedOf({}, request);
  request.token_ids.insert(request.token_ids.end(), whole.tokens.begin(),
                           whole.tokens.begin() + 9);
  const Split& split = pools.Prefill(request);
  pools.RunUntilIdle();
  pools.ExpectExact(split);
  EXPECT_EQ(split.prefill.first_token_index, 9u);
  EXPECT_EQ(split.decode.first_token_index, 9u);
}

TEST(LLMEngineTransferTest, APreemptionAfterTheImportIsRecomputedThere) {
  for (uint32_t before = 1; before < 40; before += 3) {
    Pools pools({}, {});
    const Split& split = pools.Prefill(MakeRequest(5, 100, 40));
    bool preempted = false;
    while (!preempted) {
      pools.Turn();
      preempted = split.decode.tokens.size() == before &&
                  pools.decode().Preempt(split.request.id, 0);
    }
    pools.RunUntilIdle();
    pools.ExpectExact(split);
  }
}

TEST(LLMEngineTransferTest, ExportsAndImportsCannotBePreempted) {
  Pools pools(ChunksOf(10), {});
  const Split& split = pools.Prefill(MakeRequest(5, 100, 4));
  while (split.decode.tokens.empty()) {
    EXPECT_FALSE(pools.prefill().Preempt(split.request.id, 0));
    EXPECT_FALSE(pools.decode().Preempt(split.request.id, 0));
    pools.Turn();
  }
  pools.RunUntilIdle();
}

TEST(LLMEngineTransferTest, AFullDecodePoolHoldsTransfersBack) {
  FakeRank::Options small;
  small.num_blocks = 4;
  Pools pools({}, small);
  Split& first = pools.Prefill(MakeRequest(1, 150, 40));
  Split& second = pools.Prefill(MakeRequest(2, 150, 10));
  while (second.prefill.tokens.empty()) pools.Turn();
  for (int i = 0; i < 10; ++i) pools.Turn();
  EXPECT_EQ(pools.decode().load().importing_blocks, 0u);
  EXPECT_EQ(pools.decode().load().waiting_requests, 1u);
  EXPECT_EQ(pools.prefill().load().exported_blocks, 3u);
  pools.RunUntilIdle();
  pools.ExpectExact(first);
  pools.ExpectExact(second);
}

TEST(LLMEngineTransferTest, HandlesThatDoNotFitAreRefused) {
  Pools pools({}, {});
  Split& split = pools.Prefill(MakeRequest(1, 100, 5));
  while (!split.prefill.handle.has_value()) pools.driver().Turn();
  const KvHandle good = *split.prefill.handle;
  const auto code = [&](const KvHandle& handle) {
    split.prefill.handle = handle;
    return pools.Decode(split).code();
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
  pools.RunUntilIdle();
}

TEST(LLMEngineTransferTest, BlocksOfAnExportStayUntilTheTransferHasEnded) {
  Pools pools(ChunksOf(40), {});
  Split& split = pools.Prefill(MakeRequest(1, 100, 5));
  while (split.prefill.progress.empty()) pools.driver().Turn();
  pools.prefill().Abort(split.request.id, std::nullopt);
  for (int i = 0; i < 5; ++i) {  // The agent isn't polled.
    pools.prefill().Advance();
    pools.prefill_rank().stream().Poll();
    EXPECT_EQ(pools.prefill().load().exported_blocks, 2u);
    EXPECT_FALSE(split.prefill.finished());
  }
  while (!split.prefill.finished()) pools.driver().Turn();
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(split.prefill.outcome->ended_in, RequestActivity::kPrefill);
  EXPECT_EQ(pools.prefill().load().exported_blocks, 0u);
}

TEST(LLMEngineTransferTest, ALeaseThatNobodyTakesRunsOut) {
  FakeRank::Options options;
  options.transfer.lease = absl::Seconds(3);
  Pools pools(options, {});
  Split& split = pools.Prefill(MakeRequest(1, 100, 5));
  ASSERT_TRUE(
      pools.driver().RunUntil([&] { return split.prefill.finished(); }));
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(split.prefill.tokens.size(), 1u);
  CHECK_OK(pools.Decode(split));  // Too late.
  pools.RunUntilIdle();
  EXPECT_EQ(split.decode.code(), absl::StatusCode::kAborted);
}

TEST(LLMEngineTransferTest, ADeadlineOfTheRequestsOwnIsToldAsOne) {
  Pools pools({}, {});
  GenerationRequest request = MakeRequest(1, 100, 5);
  request.deadline = pools.clock().Now() + absl::Seconds(1);
  Split& split = pools.Prefill(request);
  ASSERT_TRUE(
      pools.driver().RunUntil([&] { return split.prefill.finished(); }));
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(LLMEngineTransferTest, NanOnThePrefillSideFailsTheRequestOnBoth) {
  FakeRank::Options options;
  options.model.poison_token = 63;
  Pools pools(options, options);
  GenerationRequest request = MakeRequest(1, 100, 5);
  request.token_ids.back() = 63;
  Split& split = pools.Prefill(request);
  Split& other = pools.Prefill(MakeRequest(2, 100, 1));
  pools.RunUntilIdle();
  EXPECT_EQ(split.prefill.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(split.decode.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(split.decode.tokens.empty());
  pools.ExpectExact(other);
}

TEST(LLMEngineTransferTest, ADeadPrefillServerFailsItsImportsAlone) {
  for (int turns = 1; turns < 12; ++turns) {
    Pools pools(ChunksOf(32), {});
    Split& split = pools.Prefill(MakeRequest(1, 200, 5));
    while (!split.decode_submitted) pools.Turn();
    for (int i = 0; i < turns; ++i) pools.Turn();
    const bool imported = !split.decode.tokens.empty();
    pools.network().Kill("p", true);
    while (!split.decode.finished()) pools.Turn();
    EXPECT_EQ(split.decode.code(), imported ? absl::StatusCode::kOk
                                            : absl::StatusCode::kUnavailable);
    pools.RunUntilIdle();
  }
}

TEST(LLMEngineTransferTest, AbortsInEveryPhaseLeaveNoBlockOnEitherSide) {
  std::set<std::string> phases;
  for (const bool abort_prefill : {true, false}) {
    for (int turns = 0; turns < 60; ++turns) {
      FakeRank::Options prefill = ChunksOf(16);
      prefill.engine.max_batched_tokens = 32;
      Pools pools(prefill, {.num_blocks = 10},
                  {.maps_regions = turns % 2 == 0});
      Split& other = pools.Prefill(MakeRequest(1, 90, 12));
      Split& victim = pools.Prefill(MakeRequest(2, 120, 12));
      for (int i = 0; i < turns; ++i) pools.Turn();
      LLMEngine& engine = abort_prefill ? pools.prefill() : pools.decode();
      const EngineLoad load = engine.load();
      engine.Abort(victim.request.id, std::nullopt);
      pools.RunUntilIdle();
      pools.ExpectExact(other);
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
  Pools pools(options, decode, {.maps_regions = random() % 2 == 0});
  pools.network().set_hook([&random](auto, auto, auto) {
    return LoopbackFate{
        .copies = static_cast<uint32_t>(random() % 20 == 0 ? random() % 3 : 1),
        .delay_polls = static_cast<uint32_t>(random() % 4)};
  });
  for (uint64_t i = 0; i < 60; ++i) {
    pools.Prefill(MakeRequest(i, 1 + random() % 250, 1 + random() % 60));
    const uint64_t turns = random() % 40;
    for (uint64_t turn = 0; turn < turns; ++turn) pools.Turn();
    const Split& victim = pools.splits()[random() % (i + 1)];
    LLMEngine& side = random() % 2 == 0 ? pools.prefill() : pools.decode();
    if (random() % 4 == 0) side.Abort(victim.request.id, std::nullopt);
    if (random() % 4 == 0) side.Preempt(victim.request.id, 0);
  }
  pools.RunUntilIdle();
  int finished = 0;
  for (const Split& split : pools.splits()) {
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
