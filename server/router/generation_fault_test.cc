// What a Generation does when workers fail, are missing, or the client goes.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/router/generation_for_test.h"

namespace baton {
namespace {

using enum AttemptPhase;

TEST_F(GenerationTest, TriesAgainOnOtherWorkersUntilItGivesUp) {
  Make(Plan(), /*max_retries=*/1);
  Dispatch();
  Handle();
  EXPECT_EQ(PrefillEnds(absl::UnavailableError("gone")),
            (GenerationActions{.end_decode = {0},
                               .suspect = kPrefillWorker,
                               .find_route = {1},
                               .retry_reason = "prefill_lost"}));
  EXPECT_EQ(generation_->NeedsOf(1).avoid,
            std::vector<WorkerId>{kPrefillWorker});
  TakeRoute();
  EXPECT_EQ(PrefillRequest().attempt(), 1u);
  EXPECT_EQ(PrefillRequest().id().counter(), 102u);
  EXPECT_EQ(Handle("kv 2"), GenerationActions{.start_decode = 1});
  EXPECT_EQ(DecodeEnds(absl::UnavailableError("gone")),
            (GenerationActions{.end_prefill = {1},
                               .end_decode = {1},
                               .suspect = kDecodeWorker,
                               .finish = true}));
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
  EXPECT_EQ(ErrorReason(generation_->status()), "WORKER_LOST");
}

TEST_F(GenerationTest, AvoidsBothEndsOfALostTransfer) {
  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_EQ(DecodeEnds(absl::AbortedError("lost")),
            (GenerationActions{.end_prefill = {0},
                               .end_decode = {0},
                               .find_route = {1},
                               .retry_reason = "kv_lost"}));
  EXPECT_EQ(generation_->NeedsOf(1).avoid,
            (std::vector<WorkerId>{kPrefillWorker, kDecodeWorker}));
}

TEST_F(GenerationTest, BlamesNeitherEndForATransferThatThePrefillLost) {
  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_EQ(
      PrefillEnds(absl::AbortedError("the importer is gone")),
      (GenerationActions{
          .end_decode = {0}, .find_route = {1}, .retry_reason = "kv_lost"}));
  EXPECT_EQ(generation_->NeedsOf(1).avoid,
            (std::vector<WorkerId>{kPrefillWorker, kDecodeWorker}));
}

// We did not read: nobody's fault, and its cache has most of it.
TEST_F(GenerationTest, GoesOnWhereItWasCutForASlowClient) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1)});
  EXPECT_EQ(TakeText(), "ab");
  EXPECT_EQ(DecodeEnds(absl::AbortedError("SLOW_READER: 90s")),
            (GenerationActions{.end_decode = {0},
                               .find_route = {1},
                               .retry_reason = "slow_reader"}));
  EXPECT_TRUE(generation_->NeedsOf(1).avoid.empty());
  EXPECT_EQ(generation_->attempt(1).goal.num_resumed, 2u);
}

TEST_F(GenerationTest, AvoidsAWorkerOnceHoweverOftenItFails) {
  Make(Plan(), /*max_retries=*/10);
  Dispatch();
  for (int i = 0; i < 5; ++i) {
    PrefillEnds(absl::UnavailableError("gone"));
    TakeRoute();
  }
  EXPECT_EQ(generation_->NeedsOf(5).avoid,
            std::vector<WorkerId>{kPrefillWorker});
}

TEST_F(GenerationTest, TakesASuspectOnlyForItsFirstAttempt) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(generation_->NeedsOf(0).worst, RouteRank::kSuspect);
  PrefillEnds(absl::UnavailableError("gone"));
  EXPECT_EQ(generation_->NeedsOf(1).worst, RouteRank::kUntried);
}

TEST_F(GenerationTest, AsksForTheContextThatItMayNeed) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(generation_->NeedsOf(0).context_tokens, 3u + 4);
  EXPECT_EQ(generation_->NeedsOf(0).fingerprint, "");
}

TEST_F(GenerationTest, PausesBeforeItTriesTheSameWorkersAgain) {
  Make(Plan());
  Dispatch();
  PrefillEnds(absl::UnavailableError("gone"));
  const absl::Status nobody = absl::UnavailableError("nobody");
  const GenerationActions refused = generation_->OnNoRoute(1, nobody, now_);
  ASSERT_TRUE(refused.pause.has_value());
  const absl::Duration first = refused.pause->duration;
  EXPECT_GT(first, absl::ZeroDuration());
  EXPECT_EQ(refused.pause->attempt, 1u);
  now_ += first;
  EXPECT_EQ(generation_->OnPauseEnded(1), GenerationActions{.find_route = {1}});
  EXPECT_EQ(generation_->NeedsOf(1).worst, RouteRank::kReady);
  TakeRoute();
  EXPECT_EQ(generation_->OnPauseEnded(1), kNothing) << "it has a route";

  PrefillEnds(absl::UnavailableError("gone"));
  EXPECT_EQ(generation_->NeedsOf(2).worst, RouteRank::kUntried);
  EXPECT_EQ(generation_->OnNoRoute(2, nobody, now_).pause->duration, 2 * first);
}

TEST_F(GenerationTest, GivesUpWhenNoWorkerIsReadyInTime) {
  Make(Plan());
  Dispatch();
  PrefillEnds(absl::UnavailableError("gone"));
  const absl::Time end = now_ + absl::Seconds(5);
  const absl::Status nobody = absl::UnavailableError("nobody");
  absl::Duration last;
  for (int looks = 1; now_ < end; ++looks) {
    const absl::Duration pause =
        generation_->OnNoRoute(1, nobody, now_).pause->duration;
    ASSERT_GT(pause, absl::ZeroDuration());
    EXPECT_TRUE(pause >= last || now_ + pause == end) << pause;
    ASSERT_LT(looks, 50);
    last = pause;
    now_ += pause;
    EXPECT_EQ(generation_->OnPauseEnded(1),
              GenerationActions{.find_route = {1}});
  }
  EXPECT_EQ(now_, end);
  EXPECT_EQ(generation_->OnNoRoute(1, nobody, now_), kFinish);
  EXPECT_EQ(generation_->status(), nobody);
}

TEST_F(GenerationTest, EndsWhileItPausesWhenTheClientIsGone) {
  Make(Plan());
  Dispatch();
  PrefillEnds(absl::UnavailableError("gone"));
  generation_->OnNoRoute(1, absl::UnavailableError("nobody"), now_);
  EXPECT_EQ(generation_->OnEarlyEnd(absl::DeadlineExceededError(""), now_),
            kFinish);
  EXPECT_EQ(generation_->OnPauseEnded(1), kNothing);
  EXPECT_TRUE(absl::IsDeadlineExceeded(generation_->status()));
}

TEST_F(GenerationTest, IgnoresEveryEventOfAnOlderAttempt) {
  Make(Plan());
  Dispatch();
  Handle();
  PrefillEnds(absl::UnavailableError("gone"));
  TakeRoute();
  v1::PrefillResponse handle;
  handle.set_kv_handle("stale");
  EXPECT_EQ(generation_->OnPrefillMessage(0, &handle, now_), kNothing);
  v1::DecodeResponse tokens;
  FillChunk(0, {Letter(3)}, tokens.mutable_chunk());
  EXPECT_EQ(generation_->OnDecodeMessage(0, tokens, now_), kNothing);
  EXPECT_EQ(generation_->OnDecodeEnd(0, absl::InternalError("x"), now_),
            kNothing);
  EXPECT_EQ(generation_->OnPrefillEnd(0, absl::OkStatus(), now_), kNothing);
  EXPECT_EQ(generation_->OnGraceEnded(0, now_), kNothing);
  EXPECT_EQ(attempt().phase(), kPrefilling);
}

TEST_F(GenerationTest, IgnoresThePrefillsFailureOnceDecodeHasSpoken) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(PrefillEnds(absl::UnavailableError("gone")), kNothing);
  EXPECT_EQ(attempt().phase(), kDecoding);
}

TEST_F(GenerationTest, PassesOtherErrorsOnAtOnce) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(PrefillEnds(absl::ResourceExhaustedError("full")), kFinish);
  EXPECT_TRUE(absl::IsResourceExhausted(generation_->status()));
}

absl::Status Full() {
  return WithRetryDelay(absl::ResourceExhaustedError("full"), absl::Seconds(2));
}

TEST_F(GenerationTest, AsksAnotherWorkerAtOnceWhenOneIsFull) {
  Make(Plan(), /*max_retries=*/1);
  Dispatch();
  EXPECT_EQ(PrefillEnds(Full()),
            (GenerationActions{.find_route = {1}, .retry_reason = "busy"}));
  EXPECT_EQ(generation_->NeedsOf(1).exclude,
            std::vector<WorkerId>{kPrefillWorker});
  EXPECT_EQ(generation_->NeedsOf(1).worst, RouteRank::kReady);
  TakeRoute();
  Handle();
  EXPECT_EQ(DecodeEnds(Full()), (GenerationActions{.end_prefill = {1},
                                                   .end_decode = {1},
                                                   .find_route = {2},
                                                   .retry_reason = "busy"}));
  EXPECT_EQ(generation_->NeedsOf(2).exclude,
            (std::vector<WorkerId>{kPrefillWorker, kDecodeWorker}));
}

TEST_F(GenerationTest, TellsTheRefusalWhenNobodyElseIsReadyOrMayBeAsked) {
  for (const bool has_budget : {false, true}) {
    Make(Plan());
    Dispatch();
    PrefillEnds(Full());
    const absl::Status why = absl::UnavailableError("nobody");
    EXPECT_EQ(has_budget ? generation_->OnNoRoute(1, why, now_)
                         : generation_->OnRetryRefused(1, why, now_),
              kFinish);
    EXPECT_EQ(generation_->status(), Full());
  }
}

TEST_F(GenerationTest, TellsTheRefusalWhereNothingIsTriedAgain) {
  Make(Plan(), /*max_retries=*/0);
  Dispatch();
  EXPECT_EQ(PrefillEnds(Full()), kFinish);
  EXPECT_EQ(generation_->status(), Full());
}

// Then it may have a place, where others are gone.
TEST_F(GenerationTest, AsksAWorkerThatWasFullAgainAfterALoss) {
  Make(Plan());
  Dispatch();
  PrefillEnds(Full());
  TakeRoute();
  Handle();
  DecodeEnds(absl::UnavailableError("gone"));
  EXPECT_TRUE(generation_->NeedsOf(2).exclude.empty());
  EXPECT_EQ(generation_->NeedsOf(2).avoid,
            (std::vector<WorkerId>{kPrefillWorker, kDecodeWorker}));
}

TEST_F(GenerationTest, EndsInEveryPhaseWhenTheClientIsGone) {
  const absl::Status gone = absl::CancelledError("gone");
  Make(Plan());
  EXPECT_EQ(generation_->OnEarlyEnd(gone, now_), kFinish);
  EXPECT_EQ(generation_->OnArrived(), kNothing);
  EXPECT_EQ(generation_->OnAdmitted(now_), kNothing);
  EXPECT_EQ(generation_->OnEarlyEnd(gone, now_), kNothing);

  Make(Plan());
  generation_->OnAdmitted(now_);
  EXPECT_EQ(generation_->OnEarlyEnd(gone, now_), kFinish);
  EXPECT_EQ(generation_->OnRoute(0, {}, 1), kNothing) << "it came too late";
  EXPECT_EQ(generation_->OnNoRoute(0, gone, now_), kNothing);

  Make(Plan());
  Dispatch();
  EXPECT_EQ(generation_->OnEarlyEnd(gone, now_),
            (GenerationActions{.end_prefill = {0}, .finish = true}));

  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_EQ(generation_->OnEarlyEnd(gone, now_),
            (GenerationActions{
                .end_prefill = {0}, .end_decode = {0}, .finish = true}));

  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  TakeText();
  Finished(4);
  EXPECT_EQ(attempt().phase(), kReleasing);
  EXPECT_EQ(generation_->OnEarlyEnd(gone, now_),
            (GenerationActions{.end_prefill = {0}, .finish = true}));
  EXPECT_EQ(PrefillEnds(), kNothing);
}

TEST_F(GenerationTest, EndsWhenTheQueueIsFull) {
  Make(Plan());
  generation_->OnArrived();
  EXPECT_EQ(generation_->OnRefused(absl::ResourceExhaustedError(""), now_),
            kFinish);
  EXPECT_TRUE(absl::IsResourceExhausted(generation_->status()));
}

// --- Of an answer that has begun.

TEST_F(GenerationTest, GivesUpAfterTheLastRetryThatBringsNoToken) {
  Make(Plan(), /*max_retries=*/1);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)});
  DecodeEnds(absl::UnavailableError("gone"));
  TakeRoute(/*unified=*/true);
  Tokens(1, {Letter(1)});
  EXPECT_FALSE(DecodeEnds(absl::UnavailableError("gone")).finish)
      << "it got on";
  TakeRoute(/*unified=*/true);
  EXPECT_EQ(TakeText(), "ab");
  EXPECT_EQ(DecodeEnds(absl::UnavailableError("gone")),
            (GenerationActions{
                .end_decode = {2}, .suspect = kDecodeWorker, .finish = true}));
  EXPECT_EQ(ErrorReason(generation_->status()), "WORKER_LOST");
  EXPECT_TRUE(RetryDelay(generation_->status()).has_value());
}

TEST_F(GenerationTest, IsNotRetriedAtAllWhereThatIsOff) {
  Make(Plan(), /*max_retries=*/0);
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)});
  EXPECT_TRUE(DecodeEnds(absl::UnavailableError("gone")).finish);
}

TEST_F(GenerationTest, GivesUpInTheEndHoweverFarEachAttemptGot) {
  GenerationPlan plan = Plan();
  plan.max_tokens = 1000;
  Make(plan);
  Dispatch(/*unified=*/true);
  for (uint32_t i = 0; i < kMaxReplacedAttempts; ++i) {
    Tokens(i, {Letter(i)});
    ASSERT_FALSE(DecodeEnds(absl::UnavailableError("gone")).finish) << i;
    TakeRoute(/*unified=*/true);
  }
  Tokens(kMaxReplacedAttempts, {Letter(0)});
  EXPECT_TRUE(DecodeEnds(absl::UnavailableError("gone")).finish);
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
}

TEST_F(GenerationTest, NeverGoesOnAfterAnErrorOfTheRequest) {
  for (const absl::Status& error :
       {absl::InvalidArgumentError(""), absl::InternalError(""),
        absl::DeadlineExceededError(""), absl::FailedPreconditionError("")}) {
    Make(Plan());
    Dispatch(/*unified=*/true);
    Tokens(0, {Letter(0)});
    EXPECT_TRUE(DecodeEnds(error).find_route.empty());
    EXPECT_EQ(generation_->status(), error);
  }
}

TEST_F(GenerationTest, WaitsForAWorkerOfTheFingerprintAndNoLonger) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)});
  DecodeEnds(absl::UnavailableError("gone"));
  const absl::Status nobody = absl::UnavailableError("nobody");
  EXPECT_TRUE(generation_->OnNoRoute(1, nobody, now_).pause.has_value());
  now_ += absl::Seconds(5);
  EXPECT_TRUE(generation_->OnNoRoute(1, nobody, now_).finish);
  EXPECT_EQ(generation_->status(), nobody);
}

TEST_F(GenerationTest, LeavesAWorkerThatHasAnotherModelByNow) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  EXPECT_EQ(DecodeRequest().request().fingerprint(), "f");
  EXPECT_EQ(DecodeEnds(WithReason(absl::FailedPreconditionError("g"),
                                  "WRONG_FINGERPRINT")),
            (GenerationActions{.end_decode = {0},
                               .suspect = kDecodeWorker,
                               .find_route = {1},
                               .retry_reason = "another_model"}));
  EXPECT_EQ(generation_->NeedsOf(1).fingerprint, "") << "no token binds it";
}

TEST_F(GenerationTest, WaitsForAPlaceAtWorkersThatAreFull) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  Tokens(0, {Letter(0)});
  EXPECT_EQ(TakeText(), "a");
  DecodeEnds(absl::UnavailableError("gone"));
  const absl::Status full = absl::ResourceExhaustedError("full");
  const absl::Status nobody = absl::UnavailableError("nobody");
  absl::Duration last;
  const absl::Time end = now_ + absl::Seconds(5);
  for (uint32_t i = 1; now_ < end; ++i) {
    ASSERT_LT(i, 50u);
    TakeRoute(/*unified=*/true);
    EXPECT_EQ(DecodeEnds(full), (GenerationActions{.end_decode = {i},
                                                   .find_route = {i + 1},
                                                   .retry_reason = "busy"}));
    const GenerationActions none = generation_->OnNoRoute(i + 1, nobody, now_);
    ASSERT_TRUE(none.pause.has_value());
    EXPECT_TRUE(none.pause->duration >= last ||
                now_ + none.pause->duration == end);
    last = none.pause->duration;
    now_ += last;
    generation_->OnPauseEnded(i + 1);
  }
  EXPECT_TRUE(
      generation_->OnNoRoute(generation_->num_attempts() - 1, nobody, now_)
          .finish);
}

TEST_F(GenerationTest, WorkersThatHandItBackCostTimeAndNoTries) {
  const absl::Status draining =
      WithReason(absl::UnavailableError("draining"), "DRAINING");
  for (const bool has_token : {false, true}) {
    Make(Plan(), /*max_retries=*/1);
    Dispatch(/*unified=*/true);
    if (has_token) Tokens(0, {Letter(0)});
    TakeResponses();
    for (uint32_t i = 0; i < 30; ++i) {
      EXPECT_EQ(DecodeEnds(draining),
                (GenerationActions{.end_decode = {i},
                                   .suspect = kDecodeWorker,
                                   .find_route = {i + 1},
                                   .retry_reason = "handed_back"}));
      TakeRoute(/*unified=*/true);
    }
    DecodeEnds(draining);
    const absl::Status nobody = absl::UnavailableError("nobody");
    EXPECT_TRUE(generation_->OnNoRoute(31, nobody, now_).pause.has_value());
    now_ += absl::Seconds(5);
    EXPECT_TRUE(generation_->OnNoRoute(31, nobody, now_).finish);
  }
}

TEST_F(GenerationTest, TheTimeToWaitBeginsAnewWithATokenOrALoss) {
  const absl::Status draining =
      WithReason(absl::UnavailableError("draining"), "DRAINING");
  const absl::Status nobody = absl::UnavailableError("nobody");
  for (const bool gets_on : {false, true}) {
    Make(Plan());
    Dispatch(/*unified=*/true);
    Tokens(0, {Letter(0)});
    DecodeEnds(draining);
    now_ += absl::Seconds(4);
    TakeRoute(/*unified=*/true);
    if (gets_on) Tokens(1, {Letter(1)});
    DecodeEnds(gets_on ? draining : absl::UnavailableError("gone"));
    now_ += absl::Seconds(4);
    EXPECT_TRUE(generation_->OnNoRoute(2, nobody, now_).pause.has_value());
  }
}

TEST_F(GenerationTest, ADecodeServerThatIsFullIsWaitedForFromATokenOn) {
  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_TRUE(DecodeEnds(absl::ResourceExhaustedError("full")).finish);

  Make(Plan());
  Dispatch();
  Handle();
  FirstToken();
  EXPECT_EQ(DecodeEnds(absl::ResourceExhaustedError("full")).find_route,
            std::vector<uint32_t>{1});
  EXPECT_TRUE(generation_->OnNoRoute(1, absl::UnavailableError("nobody"), now_)
                  .pause.has_value());
}

}  // namespace
}  // namespace baton
