// Several samples of one request give what as many requests give, and its
// prompt is computed once.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/cache_spec.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_world.h"

namespace baton {
namespace {

struct Pipeline {
  uint32_t depth = 1;
  uint32_t drafts = 0;
};

class ParallelSamplingTest : public testing::TestWithParam<Pipeline> {
 protected:
  static FakeRank::Options Options() {
    FakeRank::Options options;
    options.engine.pipeline_depth = GetParam().depth;
    options.engine.num_draft_tokens = GetParam().drafts;
    options.task_time = absl::Microseconds(300);
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Pipelines, ParallelSamplingTest,
                         testing::Values(Pipeline{1, 0}, Pipeline{2, 0},
                                         Pipeline{3, 0}, Pipeline{1, 3},
                                         Pipeline{2, 1}, Pipeline{3, 5}),
                         [](const auto& tested) {
                           return "Depth" + std::to_string(tested.param.depth) +
                                  "Drafts" +
                                  std::to_string(tested.param.drafts);
                         });

// Odd counters: not greedy, so that samples differ.
GenerationRequest Sampled(uint32_t prompt, uint32_t max_tokens) {
  return MakeRequest(7, prompt, max_tokens);
}

uint32_t WholeBlocks(uint32_t prompt) {
  return (prompt - 1) / CacheSpec::kBlockTokens * CacheSpec::kBlockTokens;
}

void ExpectRequestsOfTheirOwn(const FakeRank::Options& options, uint32_t prompt,
                              uint32_t num_samples) {
  EngineWorld world(options);
  world.SubmitSamples(Sampled(prompt, 40), num_samples);
  world.RunUntilIdle();
  world.ExpectAllExact();
  for (size_t i = 0; i < num_samples; ++i) {
    EXPECT_EQ(world.requests()[i].sink.outcome->cached_tokens,
              i == 0 ? 0 : WholeBlocks(prompt));
  }
}

TEST_P(ParallelSamplingTest, SamplesAreThoseOfRequestsOfTheirOwn) {
  for (const uint32_t prompt : {1, 63, 64, 65, 127, 128, 129, 200}) {
    for (const uint32_t chunk : {20, 64, 512}) {
      FakeRank::Options options = Options();
      options.engine.max_chunk_tokens = chunk;
      for (const uint32_t num_samples : {1, 2, 7}) {
        ExpectRequestsOfTheirOwn(options, prompt, num_samples);
      }
    }
  }
}

TEST_P(ParallelSamplingTest, ThePromptsWholeBlocksAreComputedOnce) {
  constexpr uint32_t kPrompt = 200, kSamples = 5;
  EngineWorld world(Options());
  world.SubmitSamples(Sampled(kPrompt, 1), kSamples);
  world.RunUntilIdle();
  world.ExpectAllExact();
  EXPECT_EQ(world.rank().model().num_rows(),
            kPrompt + (kSamples - 1) * (kPrompt - WholeBlocks(kPrompt)));
}

TEST_P(ParallelSamplingTest, SamplesMayBeginAnywhereAndKnowTheirNumbers) {
  EngineWorld world(Options());
  GenerationRequest request = Sampled(150, 20);
  request.sample_index = 3;
  world.SubmitSamples(request, 4);
  world.RunUntilIdle();
  world.ExpectAllExact();
  std::set<std::vector<uint32_t>> answers;
  for (const auto& done : world.requests()) answers.insert(done.sink.tokens);
  EXPECT_EQ(answers.size(), 4u);
}

TEST_P(ParallelSamplingTest, TokensOfAnEarlierAttemptAreShared) {
  EngineWorld world(Options());
  GenerationRequest request = Sampled(200, 90);
  request.original_prompt_tokens = 130;
  world.SubmitSamples(request, 3);
  world.RunUntilIdle();
  world.ExpectAllExact();
  EXPECT_EQ(world.requests()[2].sink.outcome->cached_tokens, 192u);
}

// Three samples of a prompt that is told from token `from` on.
void TellPrompt(FakeRank::Options options, uint32_t prompt, uint32_t from) {
  options.engine.max_chunk_tokens = 50;
  options.engine.max_running_requests = 4;
  EngineWorld world(options);
  GenerationRequest request = Sampled(prompt, 20);
  request.prompt_logprobs_from = from;
  world.SubmitSamples(request, 3);
  const size_t expected = prompt - std::max(from, 1u);
  const RecordingTokenSink& first = world.requests()[0].sink;
  for (auto& sample : world.requests()) {
    sample.sink.on_token = [&] {
      EXPECT_EQ(first.prompt_logprobs.size(), expected);
    };
    if (&sample.sink == &first) continue;
    sample.request.prompt_logprobs_from.reset();  // To expect none.
  }
  for (uint32_t i = 0; i < from % 7; ++i) world.driver().Turn();
  world.engine().Preempt(request.id, from % 3);
  world.RunUntilIdle();
  world.ExpectAllWhole();
}

// What the first sample tells of the prompt comes before anybody's tokens, even
// if it is computed in more steps than the others' rows.
TEST_P(ParallelSamplingTest, LogprobsOfThePromptAreToldByTheFirstAlone) {
  for (const uint32_t prompt : {40, 200}) {
    for (const uint32_t from : {0u, 3u, prompt / 2, prompt - 1}) {
      TellPrompt(Options(), prompt, from);
    }
  }
}

// Then nobody tells the rest.
TEST_P(ParallelSamplingTest, AnAbortOfWhoTellsOfThePromptFreesTheOthers) {
  for (uint32_t turns = 0; turns < 12; ++turns) {
    FakeRank::Options options = Options();
    options.engine.max_chunk_tokens = 20;
    EngineWorld world(options);
    GenerationRequest request = Sampled(150, 20);
    request.prompt_logprobs_from = 0;
    world.SubmitSamples(request, 3);
    for (auto& sample : world.requests()) {
      if (sample.request.sample_index == 0) continue;
      sample.request.prompt_logprobs_from.reset();
    }
    for (uint32_t i = 0; i < turns; ++i) world.driver().Turn();
    world.engine().Abort(request.id, 0);
    world.RunUntilIdle();
    world.ExpectAllExact();
    EXPECT_EQ(world.requests()[2].sink.code(), absl::StatusCode::kOk);
  }
}

TEST_P(ParallelSamplingTest, PreemptionsOfAnySampleAtAnyTurnChangeNothing) {
  for (uint32_t victim = 0; victim < 3; ++victim) {
    uint32_t preempted = 0;
    for (uint32_t turns = 0; turns < 40; ++turns) {
      FakeRank::Options options = Options();
      options.engine.max_chunk_tokens = 50;
      options.engine.max_batched_tokens = 70;
      EngineWorld world(options);
      world.SubmitSamples(Sampled(150, 20), 3);
      for (uint32_t i = 0; i < turns; ++i) world.driver().Turn();
      preempted += world.engine().Preempt(Sampled(1, 1).id, victim);
      world.RunUntilIdle();
      world.ExpectAllExact();
    }
    EXPECT_GT(preempted, 10u);
  }
}

TEST_P(ParallelSamplingTest, AbortsOfOneOrAllAtAnyTurnLeaveTheOthersExact) {
  const std::vector<std::optional<uint32_t>> victims = {0, 1, 2, std::nullopt};
  for (const std::optional<uint32_t> victim : victims) {
    for (uint32_t turn = 0; turn < 40; ++turn) {
      FakeRank::Options options = Options();
      options.engine.max_chunk_tokens = 50;
      EngineWorld world(options);
      world.SubmitSamples(Sampled(150, 20), 3);
      for (uint32_t i = 0; i < turn; ++i) world.driver().Turn();
      world.engine().Abort(Sampled(1, 1).id, victim);
      world.RunUntilIdle();
      world.ExpectAllExact();
      for (const auto& done : world.requests()) {
        const bool aborted =
            !victim.has_value() || done.request.sample_index == *victim;
        EXPECT_EQ(done.sink.outcome->status.ok(), !aborted);
      }
    }
  }
}

TEST_P(ParallelSamplingTest, PoolsTooSmallForAllPreemptAndChangeNothing) {
  uint64_t preemptions = 0;
  for (const uint32_t blocks : {5, 6, 8, 11}) {
    FakeRank::Options options = Options();
    options.num_blocks = blocks;
    EngineWorld world(options);
    for (uint64_t i = 0; i < 4; ++i) {
      world.SubmitSamples(MakeRequest(2 * i + 1, 100 + 15 * i, 120), 4);
    }
    world.RunUntilIdle();
    world.ExpectAllExact();
    for (const StepStats& step : world.rank().steps()) {
      preemptions += step.preemptions;
    }
  }
  EXPECT_GT(preemptions, 0u);
}

// Together they hold more block table entries than the pool has blocks.
TEST_P(ParallelSamplingTest, SharedBlocksLeaveRoomForManySamples) {
  FakeRank::Options options = Options();
  options.num_blocks = 50;
  EngineWorld world(options);
  world.SubmitSamples(Sampled(15 * 64 + 1, 10), 30);
  uint32_t most_running = 0;
  world.driver().set_after_turn([&] {
    most_running =
        std::max(most_running, world.engine().load().running_requests);
  });
  world.RunUntilIdle();
  world.ExpectAllExact();
  EXPECT_GE(most_running, 16u);
}

TEST_P(ParallelSamplingTest, SamplesThatAreLiveAlreadyAreRefusedAlone) {
  EngineWorld world(Options());
  GenerationRequest request = Sampled(150, 20);
  request.sample_index = 1;
  world.Submit(request);
  request.sample_index = 0;
  world.SubmitSamples(request, 3);
  world.RunUntilIdle();
  std::map<size_t, absl::StatusCode> codes;
  for (size_t i = 0; i < 4; ++i) {
    codes[i] = world.requests()[i].sink.code();
    world.ExpectExact(world.requests()[i]);
  }
  EXPECT_EQ(codes[0], absl::StatusCode::kOk);
  EXPECT_EQ(codes[1], absl::StatusCode::kOk);
  EXPECT_EQ(codes[2], absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(codes[3], absl::StatusCode::kOk);
}

TEST_P(ParallelSamplingTest, AllSamplesAreTakenOrNone) {
  FakeRank::Options options = Options();
  options.engine.max_waiting_requests = 4;
  EngineWorld world(options);
  world.SubmitSamples(Sampled(150, 5), 3);
  std::vector<RecordingTokenSink> sinks(5);
  std::vector<TokenSink*> pointers;
  for (RecordingTokenSink& sink : sinks) pointers.push_back(&sink);
  GenerationRequest request = MakeRequest(9, 150, 5);
  request.num_samples = 2;
  const auto submit = [&] {
    return world.engine().Submit(
        request, std::span(pointers).first(request.num_samples));
  };
  EXPECT_EQ(submit().code(), absl::StatusCode::kResourceExhausted);
  world.RunUntilIdle();
  request.num_samples = 5;
  EXPECT_EQ(submit().code(), absl::StatusCode::kInvalidArgument);
  world.ExpectAllExact();
  for (const RecordingTokenSink& sink : sinks) EXPECT_FALSE(sink.finished());
}

}  // namespace
}  // namespace baton
