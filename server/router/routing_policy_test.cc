#include "server/router/routing_policy.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(WorkerLoadTest, CarriesAReportForwardByWhatWasSentAndEnded) {
  WorkerLoad load;
  EXPECT_EQ(load.Estimate(), 0);
  load.RequestSent();
  load.RequestSent();
  EXPECT_EQ(load.Estimate(), 2) << "before the first report";
  load.Report(/*running=*/5, /*waiting=*/3);
  EXPECT_EQ(load.Estimate(), 8) << "a report holds our own two already";
  load.RequestSent();
  EXPECT_EQ(load.Estimate(), 9);
  load.RequestEnded();
  load.RequestEnded();
  load.RequestEnded();
  EXPECT_EQ(load.Estimate(), 6);
  EXPECT_EQ(load.in_flight(), 0);
}

TEST(WorkerLoadTest, NeverEstimatesLessThanNothing) {
  WorkerLoad load;
  load.RequestSent();
  load.Report(0, 0);
  load.RequestEnded();
  EXPECT_EQ(load.Estimate(), 0);
}

TEST(WorkerLoadDeathTest, DiesWhenMoreRequestsEndThanWereSent) {
  WorkerLoad load;
  load.RequestSent();
  load.RequestEnded();
  EXPECT_DEATH(load.RequestEnded(), "in_flight_");
}

TEST(WorkerLoadTest, HoldsTheLargestReportWithoutOverflow) {
  WorkerLoad load;
  load.Report(UINT32_MAX, UINT32_MAX);
  EXPECT_EQ(load.Estimate(), 2 * int64_t{UINT32_MAX});
}

TEST(RoundRobinPolicyTest, GivesEachItsTurnWhateverItsLoad) {
  RoundRobinPolicy policy;
  const std::vector<int64_t> loads = {100, 0, 7};
  std::vector<size_t> picks;
  for (int i = 0; i < 6; ++i) picks.push_back(policy.Pick(loads));
  EXPECT_EQ(picks, (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
}

TEST(LeastLoadedPolicyTest, PicksTheSmallestLoad) {
  LeastLoadedPolicy policy;
  EXPECT_EQ(policy.Pick(std::vector<int64_t>{3, 1, 2}), 1u);
  EXPECT_EQ(policy.Pick(std::vector<int64_t>{3, 5, 2}), 2u);
}

TEST(LeastLoadedPolicyTest, LetsEqualsTakeTurns) {
  LeastLoadedPolicy policy;
  const std::vector<int64_t> loads = {4, 9, 4, 4};
  std::vector<size_t> picks;
  for (int i = 0; i < 6; ++i) picks.push_back(policy.Pick(loads));
  EXPECT_EQ(picks, (std::vector<size_t>{0, 2, 3, 0, 2, 3}));
}

TEST(LeastLoadedPolicyTest, SpreadsABurstThatNoReportHasSeenYet) {
  LeastLoadedPolicy policy;
  std::vector<WorkerLoad> workers(3);
  workers[0].Report(10, 0);  // The two others have just started.
  for (int i = 0; i < 20; ++i) {
    std::vector<int64_t> loads;
    for (const WorkerLoad& worker : workers) loads.push_back(worker.Estimate());
    workers[policy.Pick(loads)].RequestSent();
  }
  for (const WorkerLoad& worker : workers) EXPECT_EQ(worker.Estimate(), 10);
}

TEST(LeastLoadedPolicyTest, SurvivesAPoolThatShrinks) {
  LeastLoadedPolicy policy;
  policy.Pick(std::vector<int64_t>{1, 1, 0});
  EXPECT_EQ(policy.Pick(std::vector<int64_t>{5}), 0u);
}

TEST(MakeRoutingPolicyTest, KnowsTheTwoNamesAndNoOther) {
  EXPECT_NE(
      dynamic_cast<LeastLoadedPolicy*>(MakeRoutingPolicy("least_loaded").get()),
      nullptr);
  EXPECT_NE(
      dynamic_cast<RoundRobinPolicy*>(MakeRoutingPolicy("round_robin").get()),
      nullptr);
  EXPECT_EQ(MakeRoutingPolicy("fastest"), nullptr);
}

}  // namespace
}  // namespace baton
