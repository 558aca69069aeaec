#include "server/router/attempt.h"

#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

using enum AttemptPhase;

TEST(AttemptPhaseTest, MovesOnlyAlongTheTable) {
  const std::set<std::pair<AttemptPhase, AttemptPhase>> legal = {
      {kRouting, kPrefilling},   {kRouting, kDecoding}, {kRouting, kOver},
      {kPrefilling, kDecoding},  {kPrefilling, kOver},  {kDecoding, kReleasing},
      {kPrefilling, kReleasing}, {kDecoding, kOver},    {kReleasing, kOver}};
  for (int i = 0; i < kNumAttemptPhases; ++i) {
    for (int j = 0; j < kNumAttemptPhases; ++j) {
      const auto from = static_cast<AttemptPhase>(i);
      const auto to = static_cast<AttemptPhase>(j);
      EXPECT_EQ(IsLegalTransition(from, to), legal.contains({from, to}))
          << i << " to " << j;
    }
  }
}

TEST(AttemptTest, HasTheSamplesOfItsGoal) {
  const Attempt two(3, {.first_sample = 1, .num_samples = 2});
  EXPECT_FALSE(two.Has(0));
  EXPECT_TRUE(two.Has(1) && two.Has(2));
  EXPECT_FALSE(two.Has(3));
  const Attempt none(4, {.prompt_from = 7});
  EXPECT_FALSE(none.Has(0));
  EXPECT_TRUE(none.tells_prompt);
}

TEST(AttemptTest, RunsBetweenItsRouteAndItsEnd) {
  Attempt attempt(0, {.num_samples = 1});
  EXPECT_FALSE(attempt.is_running() || attempt.over());
  attempt.MoveTo(kDecoding);
  EXPECT_TRUE(attempt.is_running());
  attempt.MoveTo(kOver);
  EXPECT_TRUE(attempt.over() && !attempt.is_running());
}

class WorkerRequestTest : public ::testing::Test {
 protected:
  WorkerRequestTest() {
    plan_.prompt_ids = {5, 6, 7};
    plan_.sampling.seed = 42;
    plan_.num_samples = 4;
    plan_.max_tokens = 9;
    plan_.min_tokens = 4;
    plan_.stop_token_ids = {1, 8};
    plan_.num_eos_token_ids = 1;
  }
  GenerationPlan plan_;
};

TEST_F(WorkerRequestTest, GoesOnFromTheTokensOfItsSample) {
  Attempt attempt(5, {.first_sample = 2, .num_samples = 1, .num_resumed = 2});
  attempt.id_counter = 77;
  attempt.route.fingerprint = "f";
  plan_.cache_salt = "tenant";
  plan_.bypass_cache = true;
  const v1::WorkerRequest request =
      MakeWorkerRequest(plan_, attempt, std::vector<uint32_t>{30, 31});
  EXPECT_EQ(request.id().counter(), 77u);
  EXPECT_EQ(request.attempt(), 5u);
  EXPECT_EQ(request.fingerprint(), "f");
  EXPECT_EQ(request.sample_index(), 2u);
  EXPECT_EQ(std::vector(request.token_ids().begin(), request.token_ids().end()),
            (std::vector<uint32_t>{5, 6, 7, 30, 31}));
  EXPECT_EQ(request.original_prompt_tokens(), 3u);
  EXPECT_EQ(request.max_tokens(), 9u) << "limits count from the prompt";
  EXPECT_EQ(request.min_tokens(), 4u);
  EXPECT_EQ(request.sampling().seed(), 42u);
  EXPECT_EQ(request.stop_token_ids_size(), 2);
  EXPECT_EQ(request.num_eos_token_ids(), 1u);
  EXPECT_FALSE(request.has_prompt_logprobs_from());
  EXPECT_EQ(request.cache_salt(), "tenant");
  EXPECT_TRUE(request.bypass_prefix_cache());
}

TEST_F(WorkerRequestTest, AsksForOneTokenWhereOnlyThePromptIsWanted) {
  const Attempt attempt(1, {.prompt_from = 2});
  const v1::WorkerRequest request = MakeWorkerRequest(plan_, attempt, {});
  EXPECT_EQ(request.prompt_logprobs_from(), 2u);
  EXPECT_EQ(request.token_ids_size(), 3);
  EXPECT_EQ(request.max_tokens(), 1u);
  EXPECT_EQ(request.min_tokens(), 0u);
}

}  // namespace
}  // namespace baton
