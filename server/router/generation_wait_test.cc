// What a Generation waits for: workers, and a decode server's word.
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/router/generation_for_test.h"

namespace baton {
namespace {

using enum AttemptPhase;

// --- Before it has had any workers.

TEST_F(GenerationTest, WaitsForItsFirstWorkersToo) {
  Make(Plan());
  generation_->OnArrived();
  generation_->OnAdmitted(now_ += absl::Seconds(100));
  const absl::Time end = now_ + absl::Seconds(5);
  const absl::Status nobody = absl::UnavailableError("nobody");
  for (int looks = 1; now_ < end; ++looks) {
    ASSERT_LT(looks, 50);
    const GenerationActions none = generation_->OnNoRoute(0, nobody, now_);
    ASSERT_TRUE(none.pause.has_value());
    ASSERT_GT(none.pause->duration, absl::ZeroDuration());
    now_ += none.pause->duration;
    EXPECT_EQ(generation_->OnPauseEnded(0),
              GenerationActions{.find_route = {0}});
    EXPECT_EQ(generation_->NeedsOf(0).worst, RouteRank::kSuspect)
        << "as one that comes now";
  }
  EXPECT_EQ(now_, end);
  EXPECT_EQ(generation_->OnNoRoute(0, nobody, now_), kFinish);
  EXPECT_EQ(generation_->status(), nobody);
}

TEST_F(GenerationTest, GoesOnWithWorkersThatCameWhileItWaited) {
  Make(Plan());
  generation_->OnArrived();
  generation_->OnAdmitted(now_);
  generation_->OnNoRoute(0, absl::UnavailableError("nobody"), now_);
  generation_->OnPauseEnded(0);
  TakeRoute(/*unified=*/true);
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  Finished(4);
  EXPECT_EQ(TakeText(), "abcd");
  EXPECT_TRUE(generation_->status().ok());
}

TEST_F(GenerationTest, WaitsAnewForWorkersAfterOnesThatHandedItBack) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  now_ += absl::Seconds(100);  // In the worker's queue.
  DecodeEnds(WithReason(absl::UnavailableError("draining"), "DRAINING"));
  EXPECT_TRUE(generation_->OnNoRoute(1, absl::UnavailableError("nobody"), now_)
                  .pause.has_value());
}

TEST_F(GenerationTest, EndsWhileItWaitsForItsFirstWorkers) {
  Make(Plan());
  generation_->OnArrived();
  generation_->OnAdmitted(now_);
  generation_->OnNoRoute(0, absl::UnavailableError("nobody"), now_);
  EXPECT_EQ(generation_->OnEarlyEnd(absl::DeadlineExceededError(""), now_),
            kFinish);
  EXPECT_EQ(generation_->OnPauseEnded(0), kNothing);
}

// --- A decode server that gave up what a prefill server has.

absl::Status ImporterLost() {
  return WithReason(absl::AbortedError("gave up"), "IMPORTER_LOST");
}

TEST_F(GenerationTest, LetsTheDecodeServerSayWhyItGaveUp) {
  Make(Plan(), /*max_retries=*/1);
  Dispatch();
  Handle();
  EXPECT_EQ(PrefillEnds(ImporterLost()), GenerationActions{.start_grace = {0}});
  EXPECT_EQ(attempt().phase(), kDecoding);
  EXPECT_EQ(
      DecodeEnds(WithReason(absl::UnavailableError("group"), "GROUP_LOST")),
      (GenerationActions{.end_decode = {0},
                         .suspect = kDecodeWorker,
                         .find_route = {1},
                         .retry_reason = "handed_back"}));
  EXPECT_EQ(generation_->NeedsOf(1).avoid,
            std::vector<WorkerId>{kDecodeWorker});
  EXPECT_EQ(generation_->attempt(1).goal.num_failed, 0u) << "no try";
  EXPECT_EQ(generation_->OnGraceEnded(0, now_), kNothing);
}

TEST_F(GenerationTest, WaitsNoLongerThanTheGraceForItToSayWhy) {
  Make(Plan());
  Dispatch();
  Handle();
  PrefillEnds(ImporterLost());
  EXPECT_EQ(
      generation_->OnGraceEnded(0, now_),
      (GenerationActions{
          .end_decode = {0}, .find_route = {1}, .retry_reason = "kv_lost"}));
  EXPECT_EQ(DecodeEnds(absl::UnavailableError("gone")), kNothing);
}

TEST_F(GenerationTest, TakesAnAnswerThatComesAllTheSame) {
  Make(Plan());
  Dispatch();
  Handle();
  PrefillEnds(ImporterLost());
  EXPECT_EQ(Tokens(0, {Letter(0)}), kSend);
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(generation_->OnGraceEnded(0, now_), kNothing);
  EXPECT_EQ(attempt().phase(), kDecoding);
  Tokens(1, {Letter(1), Letter(2), Letter(3)});
  EXPECT_EQ(TakeText(), "bcd");
  EXPECT_TRUE(Finished(4).finish);
}

TEST_F(GenerationTest, ALeaseThatEndsBeforeTheHandleIsThePrefillsFailure) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(PrefillEnds(ImporterLost()).retry_reason, "kv_lost");
}

// --- Attempts of all requests are too many.

TEST_F(GenerationTest, EndsAtOnceWhenItMayNotTryAgain) {
  const absl::Status budget =
      WithReason(absl::UnavailableError("too many"), "RETRY_BUDGET");
  Make(Plan());
  Dispatch();
  PrefillEnds(absl::UnavailableError("gone"));
  EXPECT_EQ(attempt().goal.cause, AttemptCause::kFirst);
  EXPECT_EQ(generation_->attempt(1).goal.cause, AttemptCause::kLost);
  EXPECT_EQ(generation_->OnRetryRefused(1, budget, now_), kFinish);
  EXPECT_EQ(generation_->status(), budget);
  EXPECT_EQ(generation_->OnRetryRefused(1, budget, now_), kNothing);
  EXPECT_EQ(generation_->OnRoute(1, {}, 7), kNothing);
}

}  // namespace
}  // namespace baton
