// What MakePlan fills in, and what only the prompt's tokens tell.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/field_error.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/router/validate.h"
#include "server/router/validate_for_test.h"

namespace baton {
namespace {

TEST(MakePlanTest, FillsWhatIsAbsentFromTheModelsDefaults) {
  const absl::StatusOr<GenerationPlan> plan = Check(Request(3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->sampling.temperature, 0.7f);
  EXPECT_EQ(plan->sampling.top_p, 0.95f);
  EXPECT_EQ(plan->sampling.min_p, 0.25f);
  EXPECT_EQ(plan->sampling.top_k, 3u);
  EXPECT_EQ(plan->sampling.seed, std::nullopt);
  EXPECT_EQ(plan->max_tokens, 29u) << "the context's room";
  EXPECT_EQ(plan->stop_token_ids, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(plan->num_eos_token_ids, 2u);
}

TEST(MakePlanTest, TakesZeroAsAValueNotAsAbsent) {
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_min_p(0);
  request.mutable_sampling()->set_seed(0);
  const absl::StatusOr<GenerationPlan> plan = Check(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->sampling.temperature, 0);
  EXPECT_EQ(plan->sampling.top_k, 0u);
  EXPECT_EQ(plan->sampling.min_p, 0);
  EXPECT_EQ(plan->sampling.seed, 0u);
}

TEST(MakePlanTest, CutsMaxTokensToTheContextsRoom) {
  v1::GenerateRequest request = Request(30);
  request.mutable_stopping()->set_max_tokens(32);
  EXPECT_EQ(Check(request)->max_tokens, 2u);
}

TEST(MakePlanTest, BoundsMinTokensByMaxTokensAndCutsBothToTheRoom) {
  v1::GenerateRequest request = Request(30);
  v1::StoppingParams& stopping = *request.mutable_stopping();
  stopping.set_min_tokens(32);
  EXPECT_EQ(Check(request)->min_tokens, 2u);
  stopping.set_max_tokens(31);
  EXPECT_EQ(ErrorField(Check(request).status()), "stopping.min_tokens");
  stopping.set_min_tokens(31);
  EXPECT_EQ(Check(request)->min_tokens, 2u);
  EXPECT_EQ(Check(request)->max_tokens, 2u);
}

TEST(MakePlanTest, PromptLogprobsBeginInThePromptHoweverItWasGiven) {
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_text()->set_text("text");
  for (const uint32_t from : {0u, 4u, 5u, 31u}) {
    request.mutable_logprobs()->set_prompt_from(from);
    ASSERT_TRUE(ValidateGenerateRequest(request, Model()).ok());
    const auto plan = MakePlan(request, std::vector<uint32_t>(5, 5), Model());
    EXPECT_EQ(plan.ok(), from < 5) << from;
    if (plan.ok()) {
      EXPECT_EQ(plan->prompt_logprobs_from, from);
    } else {
      EXPECT_EQ(ErrorField(plan.status()), "logprobs.prompt_from");
    }
  }
}

TEST(MakePlanTest, KeepsWhatWasAskedOfTheOutput) {
  const absl::StatusOr<GenerationPlan> absent = Check(Request());
  EXPECT_FALSE(absent->include_stop_string);
  EXPECT_TRUE(absent->skip_special_tokens);
  EXPECT_EQ(absent->stream_interval, 1u);
  EXPECT_EQ(absent->cache_salt, "");
  EXPECT_FALSE(absent->bypass_cache);
  EXPECT_EQ(absent->sampling.repetition_penalty, 1);
  EXPECT_EQ(absent->prompt_logprobs_from, std::nullopt);
  v1::GenerateRequest request = Request();
  request.mutable_stopping()->set_include_stop_string(true);
  request.mutable_output()->set_skip_special_tokens(false);
  request.mutable_output()->set_stream_interval(9);
  request.mutable_cache()->set_salt("tenant");
  request.mutable_cache()->set_bypass(true);
  request.mutable_logprobs()->set_top(3);
  request.mutable_logprobs()->set_after_truncation(true);
  request.mutable_sampling()->set_repetition_penalty(1.5);
  request.mutable_sampling()->set_presence_penalty(-1);
  request.mutable_sampling()->set_frequency_penalty(0.5);
  request.mutable_sampling()->add_logit_bias()->set_token_id(7);
  request.mutable_sampling()->mutable_logit_bias(0)->set_bias(-2);
  const absl::StatusOr<GenerationPlan> plan = Check(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->include_stop_string);
  EXPECT_FALSE(plan->skip_special_tokens);
  EXPECT_EQ(plan->stream_interval, 9u);
  EXPECT_EQ(plan->cache_salt, "tenant");
  EXPECT_TRUE(plan->bypass_cache);
  EXPECT_EQ(plan->num_top_logprobs, 3u);
  EXPECT_TRUE(plan->logprobs_after_truncation);
  EXPECT_EQ(plan->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(plan->sampling.presence_penalty, -1);
  EXPECT_EQ(plan->sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(plan->sampling.logit_bias,
            (std::vector<std::pair<uint32_t, float>>{{7, -2}}));
}

TEST(MakePlanTest, BoundsWhatAllSamplesTogetherMayGenerate) {
  EXPECT_EQ(Check(Request())->num_samples, 1u);
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_n(128);
  EXPECT_EQ(Check(request)->num_samples, 128u);
  ModelBounds model = Model();
  model.max_context_tokens = 1 << 20;
  const auto check = [&] { return MakePlan(request, {5}, model).status(); };
  request.mutable_stopping()->set_max_tokens((1 << 22) / 128);
  EXPECT_TRUE(check().ok()) << check();
  request.mutable_stopping()->set_max_tokens((1 << 22) / 128 + 1);
  EXPECT_EQ(ErrorField(check()), "sampling.n");
  request.mutable_stopping()->clear_max_tokens();
  EXPECT_EQ(ErrorField(check()), "sampling.n") << "as many as there is room";
  request.mutable_sampling()->clear_n();
  model.max_context_tokens = 1 << 23;
  EXPECT_TRUE(check().ok()) << "one sample may fill any context";
}

TEST(MakePlanTest, PutsEosFirstAndNoIdTwice) {
  v1::GenerateRequest request = Request();
  for (uint32_t id : {9, 2, 9, 7}) {
    request.mutable_stopping()->add_stop_token_ids(id);
  }
  EXPECT_EQ(Check(request)->stop_token_ids,
            (std::vector<uint32_t>{1, 2, 9, 7}));
  EXPECT_EQ(Check(request)->num_eos_token_ids, 2u);
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_EQ(Check(request)->stop_token_ids, (std::vector<uint32_t>{9, 2, 7}));
  EXPECT_EQ(Check(request)->num_eos_token_ids, 0u);
}

TEST(MakePlanTest, RefusesTextWhoseTokensLeaveNoRoom) {
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_text()->set_text("text");
  ASSERT_TRUE(ValidateGenerateRequest(request, Model()).ok());
  for (const auto& [length, ok] : std::vector<std::pair<size_t, bool>>{
           {0, false}, {1, true}, {31, true}, {32, false}, {33, false}}) {
    const auto plan =
        MakePlan(request, std::vector<uint32_t>(length, 5), Model());
    EXPECT_EQ(plan.ok(), ok) << length;
    if (!ok) {
      EXPECT_EQ(ErrorField(plan.status()), "prompt");
    }
  }
}

}  // namespace
}  // namespace baton
