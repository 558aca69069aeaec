// How a Generation goes on from the tokens it has when workers are lost.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/router/generation_for_test.h"

namespace baton {
namespace {

using enum AttemptPhase;

const absl::Status& Gone() {
  static const auto* const gone =
      new absl::Status(absl::UnavailableError("gone"));
  return *gone;
}

std::vector<uint32_t> IdsOf(const v1::WorkerRequest& request) {
  return {request.token_ids().begin(), request.token_ids().end()};
}

class GenerationResumeTest : public GenerationTest {
 protected:
  static GenerationPlan PlanOf(uint32_t num_samples) {
    GenerationPlan plan = Plan();
    plan.num_samples = num_samples;
    return plan;
  }
  static GenerationPlan PlanWithPrompt() {
    GenerationPlan plan = Plan();
    plan.prompt_logprobs_from = 1;
    return plan;
  }
  GenerationActions Prompt(uint32_t first, uint32_t end) {
    v1::PrefillResponse message;
    FillPrompt(first, end, message.mutable_prompt_logprobs());
    return FromPrefill(&message);
  }
  GenerationActions PromptFromUnified(uint32_t first, uint32_t end) {
    v1::DecodeResponse message;
    FillPrompt(first, end, message.mutable_prompt_logprobs());
    return FromDecode(message);
  }
  // As one that has a handle, and decodes.
  void Go() {
    TakeRoute();
    EXPECT_EQ(Handle(), GenerationActions{.start_decode = attempt_});
  }
  void StartAtUnified(uint32_t attempt) {
    Route route;
    route.decode = kDecodeWorker;
    route.fingerprint = "f";
    EXPECT_EQ(generation_->OnRoute(attempt, route, ++counter_),
              GenerationActions{.start_decode = attempt});
  }
  void Use(uint32_t attempt) { attempt_ = attempt; }

 private:
  static void FillPrompt(uint32_t first, uint32_t end,
                         v1::PromptLogprobs* prompt) {
    prompt->set_first_token_index(first);
    for (uint32_t i = first; i < end; ++i) {
      prompt->add_token_ids(5 + i);
      prompt->add_logprobs(-1);
    }
  }
};

TEST_F(GenerationResumeTest, GoesOnFromItsTokensElsewhere) {
  Make(Plan());
  Dispatch();
  Handle();
  FirstToken();
  Released();
  PrefillEnds();
  Tokens(0, {Letter(0), Letter(1)});
  EXPECT_EQ(TakeText(), "ab");
  EXPECT_EQ(DecodeEnds(Gone()),
            (GenerationActions{.end_decode = {0},
                               .suspect = kDecodeWorker,
                               .find_route = {1},
                               .retry_reason = "decode_lost"}));
  const RouteNeeds needs = generation_->NeedsOf(1);
  EXPECT_EQ(needs.avoid, std::vector<WorkerId>{kDecodeWorker});
  EXPECT_EQ(needs.fingerprint, "f");
  EXPECT_EQ(needs.context_tokens, 7u);
  Go();
  for (const v1::WorkerRequest& request :
       {PrefillRequest(), DecodeRequest().request()}) {
    EXPECT_EQ(request.attempt(), 1u);
    EXPECT_EQ(IdsOf(request),
              (std::vector<uint32_t>{5, 6, 7, Letter(0), Letter(1)}));
    EXPECT_EQ(request.original_prompt_tokens(), 3u);
    EXPECT_EQ(request.max_tokens(), 4u);
  }
  // Of the lost worker; then a token that both servers tell.
  v1::DecodeResponse late;
  FillChunk(2, {Letter(9)}, late.mutable_chunk());
  EXPECT_EQ(generation_->OnDecodeMessage(0, late, now_), kNothing);
  v1::PrefillResponse first;
  FillChunk(2, {Letter(2)}, first.mutable_first_tokens());
  EXPECT_EQ(FromPrefill(&first), kSend);
  PrefillEnds();
  EXPECT_EQ(TakeText(), "c");
  EXPECT_EQ(Tokens(2, {Letter(2), Letter(3)}), kSend);
  EXPECT_EQ(TakeText(), "d");
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_TRUE(generation_->status().ok());
  EXPECT_EQ(Told().usage().completion_tokens(), 4u);
  EXPECT_EQ(Told().fingerprint(), "f");
}

TEST_F(GenerationResumeTest, AsksWithTheTokensOfItsBeginningThoughMoreCame) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  DecodeEnds(Gone());
  TakeRoute();
  v1::PrefillResponse first;
  FillChunk(1, {Letter(1)}, first.mutable_first_tokens());
  FromPrefill(&first);
  Handle();
  EXPECT_EQ(IdsOf(DecodeRequest().request()),
            (std::vector<uint32_t>{5, 6, 7, Letter(0)}))
      << "as many as the handle's KV is of";
}

TEST_F(GenerationResumeTest, GoesOnWhenThePrefillDiesBeforeItsKvWasPulled) {
  Make(Plan());
  Dispatch();
  Handle();
  FirstToken();
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(PrefillEnds(Gone()),
            (GenerationActions{.end_decode = {0},
                               .suspect = kPrefillWorker,
                               .find_route = {1},
                               .retry_reason = "prefill_lost"}));
  TakeRoute(/*unified=*/true);
  EXPECT_EQ(DecodeRequest().request().token_ids_size(), 4);
  EXPECT_EQ(Tokens(1, {Letter(1), Letter(2), Letter(3)}), kSend);
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_EQ(TakeText(), "bcd");
}

TEST_F(GenerationResumeTest, TokensThatWaitForTheIntervalAreResumedToo) {
  GenerationPlan plan = Plan();
  plan.stream_interval = 3;
  Make(plan);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)});
  EXPECT_EQ(TakeText(), "a");
  Tokens(1, {Letter(1)});
  EXPECT_FALSE(DecodeEnds(Gone()).send);
  TakeRoute(/*unified=*/true);
  EXPECT_EQ(DecodeRequest().request().token_ids_size(), 5);
  EXPECT_EQ(Tokens(2, {Letter(2), Letter(3)}), kSend);
  EXPECT_EQ(TakeText(), "bcd");
}

// --- What is over already is not asked for.

TEST_F(GenerationResumeTest, FinishesByItselfAtMaxTokens) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  TakeText();
  EXPECT_EQ(DecodeEnds(Gone()), (GenerationActions{.end_decode = {0},
                                                   .suspect = kDecodeWorker,
                                                   .send = true,
                                                   .finish = true}));
  EXPECT_TRUE(generation_->status().ok());
  EXPECT_EQ(Told().finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(Told().usage().completion_tokens(), 4u);
}

TEST_F(GenerationResumeTest, FinishesByItselfAtAStopToken) {
  for (const uint32_t stop : {kEos, 9u}) {
    Make(Plan());
    Dispatch(/*unified=*/true);
    Tokens(0, {Letter(0), stop});
    EXPECT_TRUE(DecodeEnds(Gone()).finish);
    EXPECT_TRUE(generation_->status().ok());
    EXPECT_EQ(Told().finish_reason(), stop == kEos
                                          ? v1::FINISH_REASON_EOS
                                          : v1::FINISH_REASON_STOP_TOKEN);
    EXPECT_EQ(Told().stop_token_id(), stop);
  }
}

TEST_F(GenerationResumeTest,
       TellsTheTextThatWasHeldBackWhenItFinishesByItself) {
  GenerationPlan plan = Plan();
  plan.stop_strings = {"dx"};
  Make(plan);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  EXPECT_EQ(TakeText(), "abc") << "d may become a stop string";
  EXPECT_TRUE(DecodeEnds(Gone()).finish);
  EXPECT_EQ(TakeText(), "d");
}

TEST_F(GenerationResumeTest, FindsAStopStringAcrossTheCut) {
  GenerationPlan plan = Plan();
  plan.stop_strings = {"bc"};
  Make(plan);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1)});
  EXPECT_EQ(TakeText(), "a");
  DecodeEnds(Gone());
  TakeRoute(/*unified=*/true);
  EXPECT_EQ(
      Tokens(2, {Letter(2), Letter(3)}),
      (GenerationActions{.end_decode = {1}, .send = true, .finish = true}));
  EXPECT_EQ(TakeText(), "");
  EXPECT_EQ(Told().stop_string(), "bc");
  EXPECT_EQ(Told().usage().completion_tokens(), 3u);
}

// --- Several samples.

TEST_F(GenerationResumeTest, EachSampleThatIsNotOverGoesOnByItself) {
  Make(PlanOf(4));
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)}, 0);
  Tokens(0, {Letter(1), 9}, 1);  // All of it; its end was lost.
  Tokens(0, {Letter(2), Letter(3)}, 2);
  EXPECT_EQ(TakeText(0) + TakeText(1) + TakeText(2), "abcd");
  EXPECT_EQ(DecodeEnds(Gone()),
            (GenerationActions{.end_decode = {0},
                               .suspect = kDecodeWorker,
                               .find_route = {1, 2, 3},
                               .retry_reason = "unified_lost",
                               .send = true}));
  EXPECT_EQ(Told(1).finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  for (const uint32_t attempt : {1, 2, 3}) StartAtUnified(attempt);
  const auto request = [this](uint32_t attempt) {
    return generation_->MakeDecodeRequest(attempt).request();
  };
  EXPECT_EQ(request(1).sample_index(), 0u);
  EXPECT_EQ(IdsOf(request(1)), (std::vector<uint32_t>{5, 6, 7, Letter(0)}));
  EXPECT_EQ(request(2).sample_index(), 2u);
  EXPECT_EQ(IdsOf(request(2)),
            (std::vector<uint32_t>{5, 6, 7, Letter(2), Letter(3)}));
  EXPECT_EQ(request(3).sample_index(), 3u);
  EXPECT_EQ(IdsOf(request(3)), (std::vector<uint32_t>{5, 6, 7}));
  EXPECT_FALSE(request(3).has_num_samples());
  EXPECT_NE(request(1).id().counter(), request(2).id().counter());

  Use(3);
  Tokens(0, {kEos}, 3);
  Finished(1, v1::WORKER_FINISH_REASON_STOP_TOKEN, 3);
  EXPECT_EQ(Told(3).finish_reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(attempt().phase(), kOver);
  Use(1);
  EXPECT_EQ(Tokens(1, {Letter(1), Letter(2), Letter(3)}, 0), kSend);
  EXPECT_EQ(Finished(4), kSend);
  Use(2);
  EXPECT_EQ(Tokens(2, {9}, 2), kSend);
  EXPECT_EQ(Finished(3, v1::WORKER_FINISH_REASON_STOP_TOKEN, 2),
            kSendAndFinish);
  EXPECT_EQ(TakeText(0) + TakeText(2), "bcd");
  EXPECT_EQ(generation_->summary().usage().completion_tokens(), 4 + 2 + 3 + 1u);
}

TEST_F(GenerationResumeTest, OneSamplesWorkerMayBeLostAgain) {
  Make(PlanOf(2));
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)}, 0);
  Tokens(0, {Letter(1)}, 1);
  DecodeEnds(Gone());
  for (const uint32_t attempt : {1, 2}) StartAtUnified(attempt);
  Use(1);
  Tokens(1, {Letter(1)}, 0);
  EXPECT_EQ(DecodeEnds(Gone()).find_route, std::vector<uint32_t>{3});
  Use(2);
  EXPECT_EQ(attempt().phase(), kDecoding) << "the other goes on";
  Tokens(1, {Letter(2), Letter(3), Letter(4)}, 1);
  Finished(4, v1::WORKER_FINISH_REASON_LENGTH, 1);
  TakeRoute(/*unified=*/true);
  EXPECT_EQ(IdsOf(DecodeRequest().request()),
            (std::vector<uint32_t>{5, 6, 7, Letter(0), Letter(1)}));
  Tokens(2, {Letter(2), Letter(3)}, 0);
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_EQ(TakeText(0), "abcd");
  EXPECT_EQ(TakeText(1), "bcde");
}

TEST_F(GenerationResumeTest, OneThatHasNoTokenYetMayBeLostAgain) {
  Make(PlanOf(2));
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)}, 0);
  DecodeEnds(Gone());
  for (const uint32_t attempt : {1, 2}) StartAtUnified(attempt);
  Use(2);
  EXPECT_EQ(DecodeEnds(Gone()).find_route, std::vector<uint32_t>{3});
  StartAtUnified(3);
  Use(3);
  EXPECT_EQ(DecodeRequest().request().sample_index(), 1u);
  Tokens(0, {Letter(1), 9}, 1);
  Finished(2, v1::WORKER_FINISH_REASON_STOP_TOKEN, 1);
  Use(1);
  Tokens(1, {Letter(1), Letter(2), Letter(3)}, 0);
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_EQ(TakeText(0), "abcd");
  EXPECT_EQ(TakeText(1), "b");
}

TEST_F(GenerationResumeTest, AStopStringEndsTheCallOfAResumedSample) {
  GenerationPlan plan = PlanOf(2);
  plan.stop_strings = {"c"};
  Make(plan);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)}, 0);
  Tokens(0, {Letter(0)}, 1);
  DecodeEnds(Gone());
  for (const uint32_t attempt : {1, 2}) StartAtUnified(attempt);
  TakeResponses();
  Use(1);
  EXPECT_EQ(Tokens(1, {Letter(2)}, 0),
            (GenerationActions{.end_decode = {1}, .send = true}))
      << "nothing else is in it";
  EXPECT_EQ(DecodeEnds(absl::CancelledError()), kNothing);
  EXPECT_EQ(Told(0).stop_string(), "c");
  EXPECT_EQ(generation_->phase(), GenerationPhase::kRunning);
  EXPECT_EQ(generation_->OnEarlyEnd(absl::CancelledError(), now_),
            (GenerationActions{.end_decode = {2}, .finish = true}));
}

TEST_F(GenerationResumeTest, ASampleOfAnotherAttemptIsInternal) {
  Make(PlanOf(2));
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)}, 0);
  Tokens(0, {Letter(1)}, 1);
  DecodeEnds(Gone());
  for (const uint32_t attempt : {1, 2}) StartAtUnified(attempt);
  Use(1);
  EXPECT_EQ(Tokens(1, {Letter(2)}, 1).end_decode,
            (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(absl::IsInternal(generation_->status()));
}

// --- The prompt's log-probabilities.

TEST_F(GenerationResumeTest, APromptThatWasToldIsNotAskedForAgain) {
  Make(PlanWithPrompt());
  Dispatch();
  Handle();
  Prompt(1, 3);
  Tokens(0, {Letter(0)});
  DecodeEnds(Gone());
  Go();
  EXPECT_FALSE(PrefillRequest().has_prompt_logprobs_from());
  Tokens(1, {Letter(1), Letter(2), Letter(3)});
  Finished(4);
  EXPECT_EQ(PrefillEnds(), kSendAndFinish);
  EXPECT_EQ(TakeText(), "abcd");
  EXPECT_EQ(prompt_tokens_, 2);
}

TEST_F(GenerationResumeTest, ThePromptIsAskedForBesideTheTokens) {
  Make(PlanWithPrompt());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  Prompt(1, 2);
  EXPECT_EQ(DecodeEnds(Gone()).find_route, (std::vector<uint32_t>{1, 2}));
  StartAtUnified(1);
  EXPECT_FALSE(
      generation_->MakeDecodeRequest(1).request().has_prompt_logprobs_from());
  TakeRoute();
  EXPECT_EQ(attempt_, 2u);
  EXPECT_EQ(PrefillRequest().prompt_logprobs_from(), 2u);
  EXPECT_EQ(PrefillRequest().token_ids_size(), 3);
  EXPECT_EQ(PrefillRequest().max_tokens(), 1u);
  EXPECT_EQ(Handle(), kNothing) << "nobody pulls";
  TakeResponses();
  EXPECT_EQ(Prompt(2, 3),
            (GenerationActions{.end_prefill = {2}, .send = true}));
  EXPECT_EQ(PrefillEnds(absl::CancelledError()), kNothing);
  Use(1);
  EXPECT_EQ(Tokens(1, {Letter(1), Letter(2), Letter(3)}), kSend);
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_EQ(TakeText(), "abcd");
  EXPECT_EQ(prompt_tokens_, 2);
}

TEST_F(GenerationResumeTest, DecodeGoesOnWhileThePromptIsAskedForAgain) {
  for (const absl::Status& end : {Gone(), absl::OkStatus()}) {
    Make(PlanWithPrompt());
    prompt_tokens_ = 0;
    Dispatch();
    Handle();
    Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
    EXPECT_EQ(
        PrefillEnds(end),
        (GenerationActions{.find_route = {1}, .retry_reason = "prompt_lost"}));
    EXPECT_EQ(Finished(4), kNothing);
    TakeRoute(/*unified=*/true);
    EXPECT_EQ(DecodeRequest().request().prompt_logprobs_from(), 1u);
    PromptFromUnified(1, 2);
    EXPECT_EQ(Tokens(0, {Letter(7)}), kNothing) << "its token is nobody's";
    EXPECT_EQ(
        PromptFromUnified(2, 3),
        (GenerationActions{.end_decode = {1}, .send = true, .finish = true}));
    EXPECT_EQ(TakeText(), "abcd");
    EXPECT_EQ(prompt_tokens_, 2);
    EXPECT_TRUE(IsTold(0));
  }
}

TEST_F(GenerationResumeTest, ThePromptIsAskedForAgainWhenItsGraceIsOver) {
  Make(PlanWithPrompt());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  Finished(4);
  EXPECT_EQ(attempt().phase(), kReleasing);
  EXPECT_EQ(generation_->OnGraceEnded(0, now_),
            (GenerationActions{.end_prefill = {0},
                               .find_route = {1},
                               .retry_reason = "prompt_lost"}));
  TakeRoute();
  Handle();
  EXPECT_EQ(PrefillEnds(Gone()).find_route, std::vector<uint32_t>{2});
  TakeRoute();
  Handle();
  EXPECT_TRUE(PrefillEnds(Gone()).finish) << "not for ever";
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
}

// --- Workers that break the contract.

TEST_F(GenerationResumeTest, AnotherTokenThanBeforeIsInternal) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1)});
  DecodeEnds(Gone());
  TakeRoute(/*unified=*/true);
  Tokens(1, {Letter(2)});
  EXPECT_TRUE(absl::IsInternal(generation_->status()));
}

TEST_F(GenerationResumeTest, AGapAfterTheCutIsInternal) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1)});
  DecodeEnds(Gone());
  TakeRoute(/*unified=*/true);
  Tokens(3, {Letter(3)});
  EXPECT_TRUE(absl::IsInternal(generation_->status()));
}

}  // namespace
}  // namespace baton
