// What goes wrong in engines that plan a step before the one before is known.
// Each test is a fault that such engines have had, by its symptom.
#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/engine_world.h"

namespace baton {
namespace {

FakeRank::Options Pipelined(uint32_t depth, uint32_t drafts) {
  FakeRank::Options options;
  options.engine.pipeline_depth = depth;
  options.engine.num_draft_tokens = drafts;
  return options;
}

// Every few turns somebody comes and somebody goes, so that the rows of one
// step are never those of the next.
void Churn(EngineWorld* world, std::mt19937_64* random) {
  for (uint64_t i = 0; i < 300; ++i) {
    world->Submit(MakeRequest(i, 1 + (*random)() % 70, 1 + (*random)() % 30));
    for (uint64_t turn = (*random)() % 20; turn > 0; --turn) {
      world->driver().Turn();
    }
    const uint64_t back = (*random)() % std::min<uint64_t>(i + 1, 8);
    const auto& victim = world->requests()[i - back];
    if (i % 3 == 0) world->Abort(victim);
    if (i % 3 == 1) world->engine().Preempt(victim.request.id, 0);
  }
  world->RunUntilIdle();
}

// A token not yet on the host stands as a placeholder in the plan; the fake
// model dies of an id that is none.
TEST(AsyncSchedulingTest, NoPlaceholderReachesTheModelOrAClient) {
  for (const auto& [depth, drafts] :
       {std::pair(2u, 0u), {2u, 3u}, {3u, 0u}, {3u, 3u}}) {
    std::mt19937_64 random(depth * 10 + drafts);
    FakeRank::Options options = Pipelined(depth, drafts);
    options.engine.max_running_requests = 6;
    options.task_time = absl::Microseconds(300);
    EngineWorld world(options);
    Churn(&world, &random);
    world.ExpectAllExact();
    for (const auto& done : world.requests()) {
      const auto& tokens = done.sink.tokens;
      EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(), [&](uint32_t id) {
        return id < options.model.vocab_size;
      }));
    }
  }
}

// Places for tokens not yet on the host that wrap onto live ones show at full
// concurrency alone.
TEST(AsyncSchedulingTest, AFullBatchKeepsEverySequencesTokensApart) {
  FakeRank::Options options = Pipelined(3, 5);
  options.engine.max_running_requests = 64;
  options.num_blocks = 300;
  FakeRank::Options synchronous = options;
  synchronous.engine.pipeline_depth = 1;
  synchronous.engine.num_draft_tokens = 0;
  EngineWorld world(options);
  EngineWorld plain(synchronous);
  for (uint64_t i = 0; i < 300; ++i) {
    const GenerationRequest request =
        MakeRequest(i, 1 + i * 7 % 60, 30 + i * 13 % 50);
    world.Submit(request);
    plain.Submit(request);
  }
  uint32_t most_running = 0;
  world.driver().set_after_turn([&] {
    most_running =
        std::max(most_running, world.engine().load().running_requests);
  });
  world.RunUntilIdle();
  plain.RunUntilIdle();
  EXPECT_EQ(most_running, 64u);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(world.requests()[i].sink.tokens, plain.requests()[i].sink.tokens);
    EXPECT_EQ(world.requests()[i].sink.logprobs,
              plain.requests()[i].sink.logprobs);
  }
}

constexpr uint32_t kShortContext = 66;

FakeRank::Options ShortContext(uint32_t depth, uint32_t drafts) {
  FakeRank::Options options = Pipelined(depth, drafts);
  options.model.max_context_tokens = kShortContext;
  return options;
}

// One that ends by max_tokens, and one by a stop token in the same place.
void ExpectLength(const FakeRank::Options& options, uint32_t prompt,
                  uint32_t length) {
  const uint32_t expected = std::min(length, kShortContext - prompt);
  GenerationRequest stops = MakeRequest(2, prompt, 50);
  stops.stop_token_ids = {
      ExpectedOf(options.model, stops).tokens.at(expected - 1)};
  EngineWorld world(options);
  const auto& by_length = world.Submit(MakeRequest(1, prompt, length));
  const auto& by_stop = world.Submit(stops);
  world.RunUntilIdle();
  world.ExpectAllExact();
  EXPECT_EQ(by_length.sink.tokens.size(), expected);
  EXPECT_EQ(by_length.sink.outcome->output_tokens, expected);
  EXPECT_EQ(by_stop.sink.outcome->reason, FinishReason::kStopToken);
  EXPECT_EQ(by_stop.sink.outcome->output_tokens, by_stop.sink.tokens.size());
}

// An end seen one step late must not lengthen the answer.
TEST(AsyncSchedulingTest, NothingFollowsMaxTokensAStopTokenOrTheContextsEnd) {
  for (uint32_t prompt : {1, 60, 62, 63, 64, 65}) {
    for (uint32_t length = 1; length <= 5; ++length) {
      for (uint32_t depth : {1, 2, 3}) {
        ExpectLength(ShortContext(depth, 0), prompt, length);
        ExpectLength(ShortContext(depth, 1), prompt, length);
        ExpectLength(ShortContext(depth, 5), prompt, length);
      }
    }
  }
}

struct Truth {
  uint64_t tokens = 0;
  uint64_t useful_rows = 0;
  uint64_t rows = 0;
  uint64_t drafts_made = 0;
  uint64_t drafts_verified = 0;
};

Truth SubmitMany(const FakeRank::Options& options, EngineWorld* world) {
  Truth truth;
  for (uint64_t i = 0; i < 60; ++i) {
    GenerationRequest request = MakeRequest(i, 1 + i * 7 % 90, 1 + i % 20);
    request.stop_token_ids = {3, 5, 8};
    const size_t output = ExpectedOf(options.model, request).tokens.size();
    truth.tokens += output;
    // The last token needs no row.
    truth.useful_rows += request.token_ids.size() + output - 1;
    world->Submit(request);
  }
  return truth;
}

Truth Count(const std::vector<StepStats>& steps) {
  Truth counted;
  for (const StepStats& step : steps) {
    counted.tokens += step.tokens;
    counted.rows += step.rows;
    counted.useful_rows += step.rows - step.wasted_rows;
    counted.drafts_made += step.drafts_made;
    for (uint32_t count : step.drafts_verified) {
      counted.drafts_verified += count;
    }
  }
  return counted;
}

// Steps planned for sequences that turn out to have ended do work in vain,
// which no count of tokens may include.
TEST(AsyncSchedulingTest, CountsOfStepsAreTheTruthDespiteWorkInVain) {
  for (uint32_t depth : {1, 2, 3}) {
    for (uint32_t drafts : {0, 1, 5}) {
      SCOPED_TRACE(testing::Message()
                   << "depth " << depth << " drafts " << drafts);
      FakeRank::Options options = Pipelined(depth, drafts);
      options.engine.max_chunk_tokens = 16;
      options.model.right_drafts = 160;
      EngineWorld world(options);
      const Truth truth = SubmitMany(options, &world);
      world.RunUntilIdle();
      world.ExpectAllExact();
      const Truth counted = Count(world.rank().steps());
      EXPECT_EQ(counted.tokens, truth.tokens);
      EXPECT_EQ(counted.rows, world.rank().model().num_rows());
      EXPECT_EQ(counted.useful_rows, truth.useful_rows);
      EXPECT_EQ(counted.rows > counted.useful_rows, depth > 1 || drafts > 0);
      EXPECT_GE(counted.drafts_made, counted.drafts_verified);
      EXPECT_EQ(counted.drafts_verified > 0, drafts > 0);
    }
  }
}

// A client that left must not keep its place until max_tokens.
TEST(AsyncSchedulingTest, AnAbandonedRequestIsGoneWithinTwoSteps) {
  for (uint32_t drafts : {0, 3}) {
    // Turns after which it leaves: queued, in its prompt, decoding.
    for (int turns = 0; turns < 60; ++turns) {
      FakeRank::Options options = Pipelined(2, drafts);
      options.engine.max_running_requests = 1;
      options.engine.max_chunk_tokens = 16;
      EngineWorld world(options);
      const auto& victim = world.Submit(MakeRequest(1, 70, 500));
      const auto& next = world.Submit(MakeRequest(2, 10, 5));
      for (int i = 0; i < turns; ++i) world.driver().Turn();
      const size_t steps_before = world.rank().steps().size();
      world.Abort(victim);
      world.engine().Advance();
      EXPECT_EQ(victim.sink.code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(world.engine().load().waiting_requests, 0u);
      EXPECT_EQ(world.engine().load().running_requests, 1u);
      ASSERT_TRUE(world.driver().RunUntil(
          [&] { return world.engine().load().deferred_blocks == 0; }));
      EXPECT_LE(world.rank().steps().size(), steps_before + 2);
      // Behind the steps in flight, the next one's prompt is one step.
      ASSERT_TRUE(
          world.driver().RunUntil([&] { return !next.sink.tokens.empty(); }));
      EXPECT_LE(world.rank().steps().size(), steps_before + 3);
      world.RunUntilIdle();
      world.ExpectAllExact();
    }
  }
}

// Chunks of a long prompt must leave steps to those that decode.
TEST(AsyncSchedulingTest, AVeryLongPromptDoesNotStarveDecoding) {
  constexpr uint32_t kDecoding = 32;
  FakeRank::Options options = Pipelined(2, 0);
  options.model.max_context_tokens = 1 << 17;
  options.model.bytes_per_token = 8;
  options.num_blocks = 1400;
  EngineWorld world(options);
  for (uint64_t i = 0; i < kDecoding; ++i) {
    world.Submit(MakeRequest(i, 10, 300));
  }
  ASSERT_TRUE(world.driver().RunUntil([&] {
    return std::all_of(
        world.requests().begin(), world.requests().end(),
        [](const auto& request) { return request.sink.tokens.size() > 2; });
  }));
  const auto& long_one = world.Submit(MakeRequest(99, 65536, 2));
  // Of each decoding one: steps committed when its newest token came.
  std::vector<size_t> newest(kDecoding, world.rank().steps().size());
  std::vector<size_t> seen(kDecoding, 0);
  size_t longest = 0;
  world.driver().set_after_turn([&] {
    const size_t step = world.rank().steps().size();
    for (size_t i = 0; i < kDecoding; ++i) {
      const RecordingTokenSink& sink = world.requests()[i].sink;
      if (!sink.finished()) longest = std::max(longest, step - newest[i]);
      if (sink.tokens.size() > seen[i]) newest[i] = step;
      seen[i] = sink.tokens.size();
    }
  });
  ASSERT_TRUE(
      world.driver().RunUntil([&] { return !long_one.sink.tokens.empty(); }));
  EXPECT_FALSE(world.requests()[0].sink.finished());
  EXPECT_EQ(longest, 2u);  // A step of theirs, a chunk, and so on.
  world.RunUntilIdle();
}

}  // namespace
}  // namespace baton
