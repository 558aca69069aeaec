// The same request gives the same tokens and log-probabilities, whatever else
// the engine does meanwhile.
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

struct Request {
  GenerationRequest request;
  RecordingTokenSink sink;
};

// One engine, its requests, and whether they got what they must.
class World {
 public:
  explicit World(const FakeRank::Options& options)
      : options_(options), rank_(options, &clock_) {
    rank_.AddTo(&driver_);
  }

  Request& Submit(GenerationRequest request) {
    Request& added = requests_.emplace_back();
    added.request = request;
    CHECK_OK(rank_.engine().Submit(std::move(request), &added.sink));
    return added;
  }

  void RunUntilIdle() { CHECK(driver_.RunUntilIdle()); }

  void ExpectAllExact() {
    for (const Request& done : requests_) {
      const ExpectedTokens expected = ExpectedOf(options_.model, done.request);
      EXPECT_EQ(done.sink.tokens, expected.tokens) << done.request.id;
      EXPECT_EQ(done.sink.logprobs, expected.logprobs) << done.request.id;
      EXPECT_EQ(done.sink.top, expected.top) << done.request.id;
      EXPECT_EQ(done.sink.prompt_logprobs, expected.prompt_logprobs);
      EXPECT_EQ(done.sink.prompt_top, expected.prompt_top);
    }
  }

  uint32_t NumPreemptions() const {
    uint32_t preemptions = 0;
    for (const StepStats& step : rank_.steps()) preemptions += step.preemptions;
    return preemptions;
  }

  LLMEngine& engine() { return rank_.engine(); }
  EngineDriver& driver() { return driver_; }
  SimulatedClock& clock() { return clock_; }
  std::deque<Request>& requests() { return requests_; }

 private:
  const FakeRank::Options options_;
  SimulatedClock clock_;
  EngineDriver driver_{&clock_};
  std::deque<Request> requests_;
  FakeRank rank_;
};

TEST(LLMEngineInvarianceTest, NoBatchChangesAToken) {
  for (uint64_t size : {1, 2, 5, 32}) {
    World world({.num_blocks = 128});
    for (uint64_t i = 0; i < size; ++i) {
      world.Submit(MakeRequest(i, 1 + i * 29 % 150, 1 + i * 7 % 40));
    }
    world.RunUntilIdle();
    world.ExpectAllExact();
  }
}

TEST(LLMEngineInvarianceTest, NoChunkSizeChangesAToken) {
  for (uint32_t chunk : {1, 7, 64, 65, 512}) {
    World world({.engine = {.max_batched_tokens = std::max(chunk, 100u),
                            .max_chunk_tokens = chunk}});
    for (uint64_t i = 0; i < 4; ++i) {
      world.Submit(MakeRequest(i, 60 + i * 70, 10));
    }
    world.RunUntilIdle();
    world.ExpectAllExact();
  }
}

TEST(LLMEngineInvarianceTest, NeitherDepthNorDraftsChangeAToken) {
  for (uint32_t depth = 1; depth <= kMaxPipelineDepth; ++depth) {
    for (uint32_t drafts : {0u, 1u, kMaxDraftTokens}) {
      World world(
          {.engine = {.pipeline_depth = depth, .num_draft_tokens = drafts},
           .num_blocks = 128,
           .task_time = absl::Microseconds(700)});
      for (uint64_t i = 0; i < 12; ++i) {
        world.Submit(MakeRequest(i, 1 + i * 29 % 150, 40));
      }
      world.RunUntilIdle();
      world.ExpectAllExact();
    }
  }
}

TEST(LLMEngineInvarianceTest, APreemptionBeforeAnyTokenChangesNone) {
  constexpr uint32_t kTokens = 70;
  uint32_t preempted = 0;
  for (uint32_t before = 0; before < kTokens; ++before) {
    World world({.engine = {.max_batched_tokens = 50, .max_chunk_tokens = 50}});
    const Request& victim = world.Submit(MakeRequest(1, 60, kTokens));
    world.Submit(MakeRequest(2, 30, 20));
    CHECK(world.driver().RunUntil([&] {
      return victim.sink.tokens.size() == before &&
             world.engine().Preempt(victim.request.id, 0);
    }));
    ++preempted;
    world.RunUntilIdle();
    world.ExpectAllExact();
  }
  std::cerr << "preempted before " << preempted << " indices\n";
}

TEST(LLMEngineInvarianceTest, APreemptionInAPromptTellsItsLogprobsOnce) {
  for (size_t told = 1; told < 99; told += 7) {
    World world({.engine = {.max_running_requests = 3,
                            .max_batched_tokens = 50,
                            .max_chunk_tokens = 50}});
    GenerationRequest request = MakeRequest(5, 100, 5);
    request.prompt_logprobs_from = 0;
    const Request& victim = world.Submit(request);
    world.Submit(MakeRequest(2, 30, 20));
    CHECK(world.driver().RunUntil([&] {
      return victim.sink.prompt_logprobs.size() >= told &&
             world.engine().Preempt(victim.request.id, 0);
    }));
    EXPECT_TRUE(victim.sink.tokens.empty());
    world.RunUntilIdle();
    world.ExpectAllExact();
  }
}

TEST(LLMEngineInvarianceTest, PoolsTooSmallForAllPreemptAndChangeNothing) {
  for (uint32_t blocks : {4, 5, 6, 8}) {
    World world({.engine = {.max_batched_tokens = 64, .max_chunk_tokens = 40},
                 .num_blocks = blocks});
    for (uint64_t i = 0; i < 8; ++i) {
      world.Submit(MakeRequest(i, 5 + i * 6, 150));
    }
    world.RunUntilIdle();
    world.ExpectAllExact();
    EXPECT_GT(world.NumPreemptions(), 0u);
    EXPECT_EQ(world.engine().load().free_blocks, blocks);
  }
}

TEST(LLMEngineInvarianceTest, AbortsInEveryPhaseLeaveNoBlockAndNoTrace) {
  // Turns after which the victim is aborted: queued, in its prompt, decoding.
  std::set<size_t> tokens_at_abort;
  for (int turns = 0; turns < 40; ++turns) {
    World world({.engine = {.max_batched_tokens = 16, .max_chunk_tokens = 8}});
    world.Submit(MakeRequest(1, 30, 30));
    Request& victim = world.Submit(MakeRequest(2, 50, 30));
    for (int i = 0; i < turns; ++i) world.driver().Turn();
    world.engine().Abort(victim.request.id, std::nullopt);
    world.RunUntilIdle();
    tokens_at_abort.insert(victim.sink.tokens.size());
    EXPECT_EQ(victim.sink.code(), absl::StatusCode::kCancelled);
    world.requests().pop_back();
    world.ExpectAllExact();
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

void ExpectPrefixOfExact(const FakeModelRunner::Options& model,
                         const Request& done) {
  ASSERT_TRUE(done.sink.finished());
  const ExpectedTokens expected = ExpectedOf(model, done.request);
  if (done.sink.code() == absl::StatusCode::kOk) {
    ASSERT_EQ(done.sink.tokens, expected.tokens);
    ASSERT_EQ(done.sink.logprobs, expected.logprobs);
    ASSERT_EQ(done.sink.top, expected.top);
    ASSERT_EQ(done.sink.prompt_logprobs, expected.prompt_logprobs);
    ASSERT_EQ(done.sink.prompt_top, expected.prompt_top);
    return;
  }
  ASSERT_LE(done.sink.tokens.size(), expected.tokens.size());
  ASSERT_LE(done.sink.prompt_logprobs.size(), expected.prompt_logprobs.size());
  for (size_t i = 0; i < done.sink.prompt_logprobs.size(); ++i) {
    ASSERT_EQ(done.sink.prompt_logprobs[i], expected.prompt_logprobs[i]);
    ASSERT_EQ(done.sink.prompt_top[i], expected.prompt_top[i]);
  }
  for (size_t i = 0; i < done.sink.tokens.size(); ++i) {
    ASSERT_EQ(done.sink.tokens[i], expected.tokens[i]);
    ASSERT_EQ(done.sink.logprobs[i], expected.logprobs[i]);
    ASSERT_EQ(done.sink.top[i], expected.top[i]);
  }
}

TEST_P(LLMEngineSoakTest, EveryTokenThatIsSentIsRightAndAllBlocksComeBack) {
  const uint64_t seed = std::random_device()() + GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const FakeRank::Options options = RandomOptions(random);
  World world(options);
  for (uint64_t i = 0; i < 150; ++i) {
    const Request& added =
        world.Submit(RandomRequest(random, i, world.clock().Now()));
    const uint64_t turns = random() % 30;
    for (uint64_t turn = 0; turn < turns; ++turn) world.driver().Turn();
    const Request& other = world.requests()[random() % (i + 1)];
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
  EXPECT_EQ(world.engine().load().free_blocks, options.num_blocks);
  for (const Request& done : world.requests()) {
    ExpectPrefixOfExact(options.model, done);
    if (HasFatalFailure()) break;
  }
}

}  // namespace
}  // namespace baton
