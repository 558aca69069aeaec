#include "server/router/service_times.h"

#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

TEST(ServiceTimesTest, KnowsNothingBeforeEnoughHaveEnded) {
  ServiceTimes times;
  for (size_t i = 1; i < ServiceTimes::kMinSamples; ++i) {
    times.OnServed(absl::Seconds(9), kNow);
    times.OnPrefilled(1000, absl::Seconds(9), kNow);
  }
  EXPECT_EQ(times.LeastQueueTime(100, 1, kNow), absl::ZeroDuration());
  EXPECT_EQ(times.LeastPrefillTime(1000, kNow), absl::ZeroDuration());
  times.OnServed(absl::Seconds(9), kNow);
  times.OnPrefilled(1000, absl::Seconds(9), kNow);
  EXPECT_EQ(times.LeastQueueTime(100, 1, kNow), absl::Seconds(900));
  EXPECT_EQ(times.LeastPrefillTime(1000, kNow), absl::Seconds(9));
}

TEST(ServiceTimesTest, AQueueTakesAsManyOfTheShortestTenthAsItHasRounds) {
  ServiceTimes times;
  for (int i = 0; i < 40; ++i) {
    times.OnServed(absl::Seconds(i < 5 ? 2 : 60), kNow);
  }
  EXPECT_EQ(times.LeastQueueTime(0, 4, kNow), absl::ZeroDuration());
  EXPECT_EQ(times.LeastQueueTime(3, 4, kNow), absl::ZeroDuration());
  EXPECT_EQ(times.LeastQueueTime(4, 4, kNow), absl::Seconds(2));
  EXPECT_EQ(times.LeastQueueTime(13, 4, kNow), absl::Seconds(6));
}

TEST(ServiceTimesTest, APromptIsAsFastAsTheFastestOfThoseHalfAsLong) {
  ServiceTimes times;
  for (int i = 0; i < 20; ++i) {
    times.OnPrefilled(1000, absl::Seconds(i == 7 ? 2 : 5), kNow);
    times.OnPrefilled(10, absl::Seconds(1),
                      kNow);  // Says nothing of long ones.
  }
  EXPECT_EQ(times.LeastPrefillTime(1000, kNow), absl::Seconds(2));
  EXPECT_EQ(times.LeastPrefillTime(500, kNow), absl::Milliseconds(500))
      << "all of it may have been attention";
  EXPECT_EQ(times.LeastPrefillTime(2000, kNow), absl::Seconds(4));
  EXPECT_EQ(times.LeastPrefillTime(2002, kNow), absl::ZeroDuration());
  EXPECT_EQ(times.LeastPrefillTime(0, kNow), absl::ZeroDuration());
}

TEST(ServiceTimesTest, OnlyTheNewestCountAndNoneForLong) {
  ServiceTimes times;
  for (size_t i = 0; i < ServiceTimes::kNumSamples; ++i) {
    times.OnServed(absl::Seconds(1), kNow);
    times.OnPrefilled(100, absl::Seconds(1), kNow);
  }
  for (size_t i = 0; i < ServiceTimes::kNumSamples; ++i) {
    times.OnServed(absl::Seconds(3), kNow);
    times.OnPrefilled(100, absl::Seconds(3), kNow);
  }
  const absl::Time last = kNow + ServiceTimes::kMaxAge;
  EXPECT_EQ(times.LeastQueueTime(1, 1, last), absl::Seconds(3));
  EXPECT_EQ(times.LeastPrefillTime(100, last), absl::Seconds(3));
  const absl::Time later = last + absl::Nanoseconds(1);
  EXPECT_EQ(times.LeastQueueTime(1, 1, later), absl::ZeroDuration());
  EXPECT_EQ(times.LeastPrefillTime(100, later), absl::ZeroDuration());
}

TEST(CheckTimeLeftTest, OnlyWhatCannotBeInTimeIsRefused) {
  const absl::Duration left = absl::Seconds(5);
  EXPECT_TRUE(CheckTimeLeft(absl::InfiniteDuration(), left, left).ok());
  EXPECT_TRUE(CheckTimeLeft(left, absl::Seconds(2), absl::Seconds(3)).ok());
  EXPECT_TRUE(CheckTimeLeft(left, absl::ZeroDuration(), left).ok());
  const absl::Status prompt =
      CheckTimeLeft(left, absl::Seconds(9), absl::Seconds(6));
  EXPECT_TRUE(absl::IsDeadlineExceeded(prompt));
  EXPECT_EQ(ErrorReason(prompt), "PROMPT_TOO_LONG");
  EXPECT_FALSE(RetryDelay(prompt).has_value());
  const absl::Status queue =
      CheckTimeLeft(left, absl::Seconds(3), absl::Seconds(3));
  EXPECT_TRUE(absl::IsResourceExhausted(queue));
  EXPECT_EQ(ErrorReason(queue), "QUEUE_TOO_LONG");
  EXPECT_EQ(RetryDelay(queue), absl::Seconds(3));
  for (const absl::Duration late : {absl::ZeroDuration(), -left}) {
    const absl::Status passed =
        CheckTimeLeft(late, absl::ZeroDuration(), absl::ZeroDuration());
    EXPECT_TRUE(absl::IsDeadlineExceeded(passed));
    EXPECT_FALSE(ErrorReason(passed).has_value()) << "no prompt is that short";
  }
}

}  // namespace
}  // namespace baton
