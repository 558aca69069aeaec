#include "server/router/retry_budget.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

int CountRetries(RetryBudget* budget, absl::Time now) {
  int count = 0;
  while (count < 10'000 && budget->TakeRetry(now)) ++count;
  return count;
}

int CountResumes(RetryBudget* budget, absl::Time now) {
  int count = 0;
  while (count < 10'000 && budget->TakeResume(now)) ++count;
  return count;
}

TEST(RetryBudgetTest, GivesAShareOfTheRequestsOfTheLastSeconds) {
  RetryBudget budget({.retry_share = 0.2, .min_retries = 0});
  EXPECT_FALSE(budget.TakeRetry(At(0))) << "no request, no try";
  for (int i = 0; i < 100; ++i) budget.OnBegan(1, At(i * 0.05));
  EXPECT_EQ(CountRetries(&budget, At(5)), 20);
  EXPECT_FALSE(budget.TakeRetry(At(5.5)));
  for (int i = 0; i < 50; ++i) budget.OnBegan(1, At(6));
  EXPECT_EQ(CountRetries(&budget, At(6)), 10) << "of the new ones";
  EXPECT_EQ(CountRetries(&budget, At(15.9)), 0) << "of 50 all ten are taken";
  EXPECT_EQ(CountRetries(&budget, At(30)), 0) << "nobody is there any more";
}

TEST(RetryBudgetTest, GivesASmallSystemItsFloor) {
  RetryBudget budget({.retry_share = 0.2, .min_retries = 3});
  budget.OnBegan(1, At(0));
  EXPECT_EQ(CountRetries(&budget, At(0)), 3);
  EXPECT_FALSE(budget.TakeRetry(At(8.9)));
  EXPECT_EQ(CountRetries(&budget, At(10)), 3) << "anew in each window";
}

TEST(RetryBudgetTest, GivesNoneWhereThereIsToBeNone) {
  RetryBudget budget({.retry_share = 0, .min_retries = 0});
  for (int i = 0; i < 100; ++i) budget.OnBegan(1, At(0));
  EXPECT_FALSE(budget.TakeRetry(At(0)));
}

TEST(RetryBudgetTest, LetsEveryStreamOfAWorkerThatDiesGoOn) {
  // Long streams: no request has come within the window.
  RetryBudget budget({.min_retries = 0, .min_resumes = 0});
  for (int i = 0; i < 64; ++i) budget.OnBegan(1, At(0));
  EXPECT_GE(CountResumes(&budget, At(1000)), 64);
}

TEST(RetryBudgetTest, LetsThemGoOnTwiceAndNoMoreWithinAWindow) {
  RetryBudget budget({.resumes_per_stream = 2, .min_resumes = 0});
  budget.OnBegan(/*num_streams=*/10, At(0));
  budget.OnBegan(/*num_streams=*/5, At(0));
  EXPECT_EQ(CountResumes(&budget, At(100)), 30);
  EXPECT_EQ(CountResumes(&budget, At(108)), 0);
  EXPECT_EQ(CountResumes(&budget, At(110)), 30);
  budget.OnEnded(10);
  EXPECT_EQ(CountResumes(&budget, At(130)), 10);
  budget.OnEnded(5);
  EXPECT_EQ(CountResumes(&budget, At(150)), 0);
}

TEST(RetryBudgetTest, KeepsTheTwoApart) {
  RetryBudget budget({.min_retries = 2, .min_resumes = 2});
  EXPECT_EQ(CountRetries(&budget, At(0)), 2);
  EXPECT_EQ(CountResumes(&budget, At(0)), 2);
}

TEST(RetryBudgetTest, GivesNoMoreToManyAtOnce) {
  RetryBudget budget({.min_retries = 100});
  std::atomic<int> num_taken = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        budget.OnBegan(1, At(1));
        num_taken += budget.TakeRetry(At(1)) ? 1 : 0;
        budget.OnEnded(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_taken, 100);
}

TEST(RetryBudgetDeathTest, DiesWhenMoreStreamsEndThanBegan) {
  RetryBudget budget({});
  EXPECT_DEATH(budget.OnEnded(1), "num_streams_");
}

}  // namespace
}  // namespace baton
