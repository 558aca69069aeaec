// What a Generation does for several samples of a prompt.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/router/generation_for_test.h"

namespace baton {
namespace {

using enum AttemptPhase;

class GenerationSamplesTest : public GenerationTest {
 protected:
  static GenerationPlan PlanOf(uint32_t num_samples) {
    GenerationPlan plan = Plan();
    plan.num_samples = num_samples;
    return plan;
  }
  // "abcd" of sample 0, "bcde" of sample 1, ...
  GenerationActions Four(uint32_t sample_index) {
    const uint32_t s = sample_index;
    return Tokens(0, {Letter(s), Letter(s + 1), Letter(s + 2), Letter(s + 3)},
                  s);
  }
  GenerationActions FinishedFour(uint32_t sample_index) {
    return Finished(4, v1::WORKER_FINISH_REASON_LENGTH, sample_index);
  }
};

TEST_F(GenerationSamplesTest, OnlyTheDecodeRequestSaysHowMany) {
  Make(PlanOf(3));
  Dispatch();
  Handle("opaque");
  EXPECT_FALSE(PrefillRequest().has_num_samples());
  EXPECT_EQ(DecodeRequest().request().num_samples(), 3u);
  EXPECT_EQ(DecodeRequest().kv_handle(), "opaque");
  Make(PlanOf(1));
  Dispatch(/*unified=*/true);
  EXPECT_FALSE(DecodeRequest().request().has_num_samples());
  EXPECT_FALSE(DecodeRequest().has_kv_handle());
}

TEST_F(GenerationSamplesTest, EachSampleHasItsTokensAndItsOwnEnd) {
  Make(PlanOf(3));
  Dispatch();
  Handle();
  EXPECT_EQ(FirstToken(), kSend) << "of sample 0";
  Released();
  PrefillEnds();
  EXPECT_EQ(Tokens(0, {Letter(5), kEos}, 2), kSend);
  EXPECT_EQ(Four(0), kSend);
  EXPECT_EQ(TakeText(0), "abcd");
  EXPECT_EQ(TakeText(2), "f");
  EXPECT_EQ(Finished(2, v1::WORKER_FINISH_REASON_STOP_TOKEN, 2), kSend);
  EXPECT_FALSE(Told(2).timing().has_kv_transfer_bytes())
      << "the first sample tells of it";
  EXPECT_EQ(Told(2).finish_reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(Told(2).stop_token_id(), kEos);
  EXPECT_EQ(Told(2).usage().completion_tokens(), 2u);
  EXPECT_EQ(FinishedFour(0), kSend);
  EXPECT_EQ(Tokens(0, {Letter(1), 9}, 1), kSend);
  EXPECT_EQ(attempt().phase(), kDecoding);
  EXPECT_EQ(Finished(2, v1::WORKER_FINISH_REASON_STOP_TOKEN, 1),
            kSendAndFinish);
  EXPECT_EQ(TakeText(1), "b");
  EXPECT_EQ(Told(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(Told(1).finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(Told(1).stop_token_id(), 9u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Told(i).sample_index(), i);
    EXPECT_EQ(Told(i).seed(), 42u);
    EXPECT_EQ(Told(i).fingerprint(), "f");
    EXPECT_EQ(Told(i).usage().prompt_tokens(), 3u);
    EXPECT_EQ(Told(i).usage().cached_tokens(), 2u);
    EXPECT_EQ(Told(i).timing().queue_seconds(), 1.5);
    EXPECT_EQ(Told(i).timing().prefill_seconds(), 3);
  }
  EXPECT_EQ(Told(0).timing().kv_transfer_bytes(), 77u);
  EXPECT_EQ(Told(1).timing().kv_transfer_bytes(), 77u);
  EXPECT_EQ(generation_->summary().usage().completion_tokens(), 8u);
}

TEST_F(GenerationSamplesTest, AnEndWaitsForThePrefillsWordOrItsGrace) {
  Make(PlanOf(2));
  Dispatch();
  Handle();
  Four(0);
  EXPECT_EQ(TakeText(0), "abcd");
  EXPECT_EQ(FinishedFour(0), kNothing);
  EXPECT_FALSE(IsTold(0));
  Released();
  EXPECT_EQ(PrefillEnds(), kSend);
  EXPECT_EQ(Told(0).usage().cached_tokens(), 2u);

  Make(PlanOf(2));
  Dispatch();
  Handle();
  Four(0);
  TakeResponses();
  FinishedFour(0);
  EXPECT_EQ(generation_->OnGraceEnded(0, now_),
            (GenerationActions{.end_prefill = {0}, .send = true}));
  EXPECT_TRUE(IsTold(0));

  Make(PlanOf(2));
  Dispatch();
  Handle();
  Four(0);
  Four(1);
  TakeResponses();
  FinishedFour(1);
  EXPECT_EQ(FinishedFour(0), kNothing);
  EXPECT_EQ(attempt().phase(), kReleasing);
  EXPECT_EQ(PrefillEnds(), kSendAndFinish);
  EXPECT_TRUE(IsTold(0) && IsTold(1));
}

TEST_F(GenerationSamplesTest, AStopStringEndsItsSampleAlone) {
  GenerationPlan plan = PlanOf(3);
  plan.stop_strings = {"cd"};
  plan.max_tokens = 3;
  Make(plan);
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(1), Letter(2), Letter(3)}, 1),
            (GenerationActions{.abort = {{0, 1}}, .send = true}));
  EXPECT_EQ(TakeText(1), "b");
  EXPECT_EQ(Told(1).finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(Told(1).stop_string(), "cd");
  EXPECT_EQ(Told(1).usage().completion_tokens(), 3u);
  EXPECT_EQ(Tokens(3, {Letter(4)}, 1), kNothing) << "sent before the abort";
  EXPECT_EQ(Finished(4, v1::WORKER_FINISH_REASON_LENGTH, 1), kNothing);
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1), Letter(2)}), kSend);
  EXPECT_EQ(Finished(3), kSend);
  EXPECT_EQ(TakeText(0), "abc");
  EXPECT_EQ(
      Tokens(0, {Letter(2), Letter(3)}, 2),
      (GenerationActions{.end_decode = {0}, .send = true, .finish = true}))
      << "the last one ends the call";
  EXPECT_EQ(Told(2).stop_string(), "cd");
  EXPECT_TRUE(generation_->status().ok());
}

TEST_F(GenerationSamplesTest, TheCallIsEndedThoughAnAbortMayHaveBeenLost) {
  GenerationPlan plan = PlanOf(2);
  plan.stop_strings = {"a"};
  Make(plan);
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(0)}).abort->sample_index, 0u);
  Four(1);
  TakeResponses();
  EXPECT_EQ(
      FinishedFour(1),
      (GenerationActions{.end_decode = {0}, .send = true, .finish = true}));

  // The same while the prefill call is open.
  Make(plan);
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  Four(1);
  TakeResponses();
  EXPECT_EQ(FinishedFour(1), GenerationActions{.end_decode = {0}});
  EXPECT_EQ(DecodeEnds(absl::CancelledError()), kNothing);
  EXPECT_EQ(PrefillEnds(), kSendAndFinish);
}

TEST_F(GenerationSamplesTest, AStopStringInThePrefillsTokenWaitsForDecode) {
  GenerationPlan plan = PlanOf(2);
  plan.stop_strings = {"a"};
  Make(plan);
  Dispatch();
  EXPECT_EQ(FirstToken(), kSend);
  EXPECT_FALSE(IsTold(0)) << "its end waits for the prefill's word";
  EXPECT_EQ(Handle(), GenerationActions{.start_decode = 0});
  EXPECT_EQ(Tokens(0, {Letter(1)}, 1), kSend);
  EXPECT_EQ(TakeText(1), "b");
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1)}),
            (GenerationActions{.abort = {{0, 0}}, .start_grace = 0}))
      << "the worker knows the request by now";
  EXPECT_EQ(Tokens(2, {Letter(2)}), kNothing) << "once";
  Released();
  EXPECT_EQ(PrefillEnds(), kSend);
  EXPECT_EQ(Told(0).stop_string(), "a");
  EXPECT_EQ(attempt().phase(), kDecoding);
}

TEST_F(GenerationSamplesTest, TheStreamIntervalIsOfEachSample) {
  GenerationPlan plan = PlanOf(2);
  plan.stream_interval = 2;
  Make(plan);
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(0)}, 0), kSend);
  EXPECT_EQ(Tokens(0, {Letter(1)}, 1), kSend);
  EXPECT_EQ(TakeText(0) + TakeText(1), "ab");
  EXPECT_EQ(Tokens(1, {Letter(1)}, 0), kNothing);
  EXPECT_EQ(Tokens(1, {Letter(2), Letter(3)}, 1), kSend);
  EXPECT_EQ(TakeText(0), "") << "it has one token only";
  EXPECT_EQ(TakeText(1), "cd");
  EXPECT_EQ(Tokens(2, {Letter(2)}, 0), kSend);
  EXPECT_EQ(TakeText(0), "bc");
}

TEST_F(GenerationSamplesTest, NoSampleGoesBeforeThePrompt) {
  GenerationPlan plan = PlanOf(2);
  plan.prompt_logprobs_from = 1;
  plan.stop_strings = {"b"};
  Make(plan);
  Dispatch();
  Handle();
  EXPECT_TRUE(Tokens(0, {Letter(0)}, 0).start_grace);
  EXPECT_EQ(Tokens(0, {Letter(1)}, 1), (GenerationActions{.abort = {{0, 1}}}));
  TakeResponses();
  EXPECT_TRUE(texts_.empty());
  v1::PrefillResponse message;
  v1::PromptLogprobs* const prompt = message.mutable_prompt_logprobs();
  prompt->set_first_token_index(1);
  for (uint32_t id : {6, 7}) {
    prompt->add_token_ids(id);
    prompt->add_logprobs(-1);
  }
  EXPECT_EQ(FromPrefill(&message), kSend);
  EXPECT_EQ(TakeText(0), "a");
  EXPECT_FALSE(IsTold(1));
  EXPECT_EQ(PrefillEnds(), kSend);
  EXPECT_TRUE(IsTold(1));
}

TEST_F(GenerationSamplesTest, OnlyTheFirstSampleTellsThatTheKvIsThere) {
  Make(PlanOf(2));
  Dispatch();
  Handle();
  EXPECT_FALSE(Tokens(0, {Letter(0)}, 1).start_grace) << "it may compute";
  EXPECT_TRUE(Tokens(0, {Letter(0)}, 0).start_grace);
  EXPECT_FALSE(Tokens(1, {Letter(1)}, 0).start_grace) << "once";
}

TEST_F(GenerationSamplesTest, AnErrorEndsTheCallWithoutMoreEnds) {
  Make(PlanOf(2));
  Dispatch();
  Handle();
  Four(0);
  Tokens(0, {Letter(1)}, 1);
  FinishedFour(0);
  EXPECT_TRUE(generation_->OnEarlyEnd(absl::CancelledError(), now_).finish);
  EXPECT_EQ(TakeText(0) + TakeText(1), "abcdb") << "what came is passed on";
  EXPECT_FALSE(IsTold(0) || IsTold(1));
  EXPECT_EQ(generation_->summary().usage().completion_tokens(), 5u);
}

TEST_F(GenerationSamplesTest, CallsABrokenContractInternal) {
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"a sample too many", [this] { Tokens(0, {Letter(0)}, 2); }},
      {"an end too many",
       [this] { Finished(0, v1::WORKER_FINISH_REASON_LENGTH, 2); }},
      {"a second end", [this] { FinishedFour(0), FinishedFour(0); }},
      {"a token past an end", [this] { Tokens(4, {Letter(0)}, 0); }},
      {"a sample that never ends", [this] {
         FinishedFour(0);
         DecodeEnds(absl::OkStatus());
       }}};
  for (const auto& [name, break_it] : cases) {
    SCOPED_TRACE(name);
    Make(PlanOf(2));
    Dispatch(/*unified=*/true);
    Four(0);
    break_it();
    ASSERT_EQ(generation_->phase(), GenerationPhase::kFinished);
    EXPECT_TRUE(absl::IsInternal(generation_->status()))
        << generation_->status();
  }
}

}  // namespace
}  // namespace baton
