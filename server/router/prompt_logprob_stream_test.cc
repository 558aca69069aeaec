#include "server/router/prompt_logprob_stream.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "proto/baton/v1/inference.pb.h"

namespace baton {
namespace {

// A prompt of ten tokens, each of id 100 + its index.
GenerationPlan PlanFrom(uint32_t from, uint32_t num_top = 0) {
  GenerationPlan plan;
  for (uint32_t i = 0; i < 10; ++i) plan.prompt_ids.push_back(100 + i);
  plan.prompt_logprobs_from = from;
  plan.num_top_logprobs = num_top;
  return plan;
}

v1::PromptLogprobs Tokens(uint32_t first, uint32_t count, bool top = false) {
  v1::PromptLogprobs tokens;
  tokens.set_first_token_index(first);
  for (uint32_t i = first; i < first + count; ++i) {
    tokens.add_token_ids(100 + i);
    tokens.add_logprobs(-static_cast<float>(i));
    if (top) tokens.add_top_logprobs()->add_token_ids(i);
  }
  return tokens;
}

TEST(PromptLogprobStreamTest, MessagesOfSeveralAttemptsBecomeOneStream) {
  const GenerationPlan plan = PlanFrom(0, 1);
  PromptLogprobStream stream(&plan);
  v1::PromptLogprobs out;
  for (const auto& [first, count] :
       std::vector<std::pair<uint32_t, uint32_t>>{{1, 4}, {1, 2}, {3, 7}}) {
    EXPECT_FALSE(stream.complete());
    EXPECT_TRUE(stream.Append(Tokens(first, count, true), &out).ok());
  }
  EXPECT_TRUE(stream.complete());
  EXPECT_EQ(out.SerializeAsString(), Tokens(1, 9, true).SerializeAsString());
}

TEST(PromptLogprobStreamTest, ItBeginsWhereItWasAsked) {
  for (const uint32_t from : {1u, 5u, 9u}) {
    const GenerationPlan plan = PlanFrom(from);
    PromptLogprobStream stream(&plan);
    v1::PromptLogprobs out;
    EXPECT_TRUE(stream.Append(Tokens(from, 10 - from), &out).ok());
    EXPECT_TRUE(stream.complete());
    EXPECT_EQ(out.first_token_index(), from);
  }
}

TEST(PromptLogprobStreamTest, WithNothingToTellItIsCompleteAtOnce) {
  GenerationPlan plan = PlanFrom(0);
  plan.prompt_logprobs_from.reset();
  v1::PromptLogprobs out;
  PromptLogprobStream nothing(&plan);
  EXPECT_TRUE(nothing.complete());
  EXPECT_TRUE(nothing.Append(Tokens(1, 9), &out).ok());
  EXPECT_EQ(out.token_ids_size(), 0);
  plan = PlanFrom(0);
  plan.prompt_ids = {100};
  EXPECT_TRUE(PromptLogprobStream(&plan).complete());
}

TEST(PromptLogprobStreamTest, WhatNoGoodWorkerSendsIsInternal) {
  const GenerationPlan plan = PlanFrom(2);
  const GenerationPlan with_top = PlanFrom(2, 3);
  v1::PromptLogprobs other = Tokens(2, 2);
  other.set_token_ids(1, 7);
  v1::PromptLogprobs fewer = Tokens(2, 2);
  fewer.mutable_logprobs()->RemoveLast();
  const std::vector<std::pair<const GenerationPlan*, v1::PromptLogprobs>> bad =
      {{&plan, Tokens(3, 2)},
       {&plan, Tokens(2, 9)},
       {&plan, Tokens(0xffffffff, 1)},
       {&plan, other},
       {&plan, fewer},
       {&plan, Tokens(2, 2, true)},
       {&with_top, Tokens(2, 2, false)}};
  for (size_t i = 0; i < bad.size(); ++i) {
    PromptLogprobStream stream(bad[i].first);
    v1::PromptLogprobs out;
    EXPECT_TRUE(absl::IsInternal(stream.Append(bad[i].second, &out))) << i;
  }
}

}  // namespace
}  // namespace baton
