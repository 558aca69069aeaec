// How a generation's output is told: chunks by the stream interval, and the
// prompt's log-probabilities before all of them.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/router/generation.h"
#include "server/router/generation_for_test.h"

namespace baton {
namespace {

class GenerationOutputTest : public GenerationTest {
 protected:
  static GenerationPlan PlanWithPrompt() {
    GenerationPlan plan = Plan();
    plan.prompt_logprobs_from = 1;
    return plan;
  }
  // Tokens `first` and those behind it, of the prompt's three.
  v1::PromptLogprobs Prompt(uint32_t first) {
    v1::PromptLogprobs prompt;
    prompt.set_first_token_index(first);
    for (uint32_t i = first; i < 3; ++i) {
      prompt.add_token_ids(5 + i);
      prompt.add_logprobs(-1);
    }
    return prompt;
  }
  GenerationActions PromptFromPrefill(uint32_t first) {
    v1::PrefillResponse message;
    *message.mutable_prompt_logprobs() = Prompt(first);
    return FromPrefill(&message);
  }
  int TakePrompt() {
    TakeResponses();
    return std::exchange(prompt_tokens_, 0);
  }
};

TEST_F(GenerationOutputTest, TokensWaitForTheIntervalButTheFirstAndTheLast) {
  GenerationPlan plan = Plan();
  plan.max_tokens = 6;
  plan.stream_interval = 3;
  Make(plan);
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(0)}), kSend);
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(Tokens(1, {Letter(1), Letter(2)}), kNothing);
  EXPECT_EQ(Tokens(3, {Letter(3), Letter(4)}), kSend);
  EXPECT_EQ(TakeText(), "bcde");
  EXPECT_EQ(Tokens(5, {Letter(5)}), kNothing);
  EXPECT_EQ(Finished(6), (GenerationActions{.send = true, .finish = true}));
  EXPECT_EQ(TakeText(), "f");
}

TEST_F(GenerationOutputTest, WhatWaitsForTheIntervalIsSentBeforeAnError) {
  GenerationPlan plan = Plan();
  plan.stream_interval = 3;
  Make(plan);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)});
  TakeText();
  Tokens(1, {Letter(1)});
  EXPECT_TRUE(DecodeEnds(absl::InternalError("broken")).send);
  EXPECT_EQ(TakeText(), "b");
}

TEST_F(GenerationOutputTest, AUnifiedWorkerTellsThePromptFirst) {
  Make(PlanWithPrompt());
  Dispatch(/*unified=*/true);
  v1::DecodeResponse message;
  *message.mutable_prompt_logprobs() = Prompt(1);
  EXPECT_EQ(FromDecode(message), kSend);
  EXPECT_EQ(TakePrompt(), 2);
  EXPECT_EQ(Tokens(0, {Letter(0)}), kSend);
}

TEST_F(GenerationOutputTest, TokensWaitForThePromptThoughTheyComeFirst) {
  Make(PlanWithPrompt());
  Dispatch();
  Handle();
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1)}),
            GenerationActions{.start_grace = 0});
  EXPECT_EQ(PromptFromPrefill(1), (GenerationActions{.send = true}));
  EXPECT_EQ(TakePrompt(), 2);
  EXPECT_EQ(TakeText(), "ab");
}

TEST_F(GenerationOutputTest, AnotherAttemptTellsOnlyTheRest) {
  Make(PlanWithPrompt());
  Dispatch();
  Handle();
  v1::PrefillResponse message;
  *message.mutable_prompt_logprobs() = Prompt(1);
  message.mutable_prompt_logprobs()->mutable_token_ids()->RemoveLast();
  message.mutable_prompt_logprobs()->mutable_logprobs()->RemoveLast();
  EXPECT_EQ(FromPrefill(&message), kSend);
  EXPECT_EQ(TakePrompt(), 1);
  EXPECT_FALSE(PrefillEnds(absl::UnavailableError("gone")).find_route.empty());
  TakeRoute();
  EXPECT_EQ(PrefillRequest().prompt_logprobs_from(), 2u);
  Handle();
  EXPECT_EQ(PromptFromPrefill(1), kSend) << "with one that is known";
  EXPECT_EQ(TakePrompt(), 1);
}

TEST_F(GenerationOutputTest, AStopStringWaitsForTheRestOfThePrompt) {
  GenerationPlan plan = PlanWithPrompt();
  plan.stop_strings = {"b"};
  Make(plan);
  Dispatch();
  Handle();
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1)}),
            (GenerationActions{.end_decode = {0}, .start_grace = 0}));
  EXPECT_EQ(PromptFromPrefill(1), (GenerationActions{.send = true}));
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(PrefillEnds(), kSendAndFinish);
  EXPECT_TRUE(generation_->status().ok());
  EXPECT_EQ(Told().stop_string(), "b");
}

TEST_F(GenerationOutputTest, AnAnswerWithoutItsPromptIsAnError) {
  Make(PlanWithPrompt());
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)}), kNothing);
  EXPECT_EQ(Finished(4), kFinish);
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
}

TEST_F(GenerationOutputTest, AStrangePromptIsInternal) {
  Make(PlanWithPrompt());
  Dispatch();
  Handle();
  PromptFromPrefill(2);
  EXPECT_TRUE(absl::IsInternal(generation_->status()));
}

TEST_F(GenerationOutputTest, WorkersAreToldAllThatWasAsked) {
  GenerationPlan plan = PlanWithPrompt();
  plan.sampling.repetition_penalty = 1.5;
  plan.sampling.presence_penalty = -1;
  plan.sampling.frequency_penalty = 0.5;
  plan.sampling.logit_bias = {{9, -2}};
  plan.num_top_logprobs = 3;
  plan.logprobs_after_truncation = true;
  plan.min_tokens = 2;
  Make(plan);
  Dispatch();
  const v1::WorkerRequest request = PrefillRequest();
  EXPECT_EQ(request.sampling().repetition_penalty(), 1.5);
  EXPECT_EQ(request.sampling().presence_penalty(), -1);
  EXPECT_EQ(request.sampling().frequency_penalty(), 0.5);
  ASSERT_EQ(request.sampling().logit_bias_size(), 1);
  EXPECT_EQ(request.sampling().logit_bias(0).token_id(), 9u);
  EXPECT_EQ(request.sampling().logit_bias(0).bias(), -2);
  EXPECT_EQ(request.sampling().num_top_logprobs(), 3u);
  EXPECT_TRUE(request.sampling().logprobs_after_truncation());
  EXPECT_EQ(request.min_tokens(), 2u);
  EXPECT_EQ(request.prompt_logprobs_from(), 1u);
}

}  // namespace
}  // namespace baton
