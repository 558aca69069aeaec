#include "server/router/routing_policy.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<RankName> Names(size_t count) {
  std::vector<RankName> names;
  for (uint32_t i = 0; i < count; ++i) names.push_back({i, 0, 1});
  return names;
}

size_t Pick(RoutingPolicy* policy, const std::vector<int64_t>& loads,
            const std::vector<PrefixKey>& prefix = {}) {
  return policy->Pick(
      {.loads = loads, .names = Names(loads.size()), .prefix = prefix});
}

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

TEST(WorkerLoadTest, CountsItsOwnRequestsThatAReportHasNotSeen) {
  WorkerLoad load;
  for (int i = 0; i < 5; ++i) load.RequestSent();
  load.Report(0, 0);  // Taken before they arrived.
  EXPECT_EQ(load.Estimate(), 5);
  load.Report(1, 1);
  EXPECT_EQ(load.Estimate(), 5);
  load.RequestEnded();
  EXPECT_EQ(load.Estimate(), 4);
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
  for (int i = 0; i < 6; ++i) picks.push_back(Pick(&policy, loads));
  EXPECT_EQ(picks, (std::vector<size_t>{0, 1, 2, 0, 1, 2}));
}

TEST(LeastLoadedPolicyTest, PicksTheSmallestLoad) {
  LeastLoadedPolicy policy;
  EXPECT_EQ(Pick(&policy, {3, 1, 2}), 1u);
  EXPECT_EQ(Pick(&policy, {3, 5, 2}), 2u);
}

TEST(LeastLoadedPolicyTest, LetsEqualsTakeTurns) {
  LeastLoadedPolicy policy;
  const std::vector<int64_t> loads = {4, 9, 4, 4};
  std::vector<size_t> picks;
  for (int i = 0; i < 6; ++i) picks.push_back(Pick(&policy, loads));
  EXPECT_EQ(picks, (std::vector<size_t>{0, 2, 3, 0, 2, 3}));
}

TEST(LeastLoadedPolicyTest, SpreadsABurstThatNoReportHasSeenYet) {
  LeastLoadedPolicy policy;
  std::vector<WorkerLoad> workers(3);
  workers[0].Report(10, 0);  // The two others have just started.
  for (int i = 0; i < 20; ++i) {
    std::vector<int64_t> loads;
    for (const WorkerLoad& worker : workers) loads.push_back(worker.Estimate());
    workers[Pick(&policy, loads)].RequestSent();
  }
  for (const WorkerLoad& worker : workers) EXPECT_EQ(worker.Estimate(), 10);
}

TEST(LeastLoadedPolicyTest, SurvivesAPoolThatShrinks) {
  LeastLoadedPolicy policy;
  Pick(&policy, {1, 1, 0});
  EXPECT_EQ(Pick(&policy, {5}), 0u);
}

// What one prompt's prefix is known by; the number tells them apart.
std::vector<PrefixKey> Prompt(uint32_t number, size_t num_blocks,
                              size_t num_shared_blocks = 0) {
  std::vector<uint32_t> ids(num_blocks * kTokensPerPrefixBlock, 7);
  for (size_t i = num_shared_blocks * kTokensPerPrefixBlock; i < ids.size();
       ++i) {
    ids[i] = 1000 + number;
  }
  return PrefixKeysOf(ids, "");
}

TEST(PowerOfTwoPolicyTest, PicksTheLessLoadedOfTwo) {
  PowerOfTwoPolicy policy(/*seed=*/1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Pick(&policy, {5, 3}), 1u);
  EXPECT_EQ(Pick(&policy, {5}), 0u);
}

TEST(PowerOfTwoPolicyTest, DrawsEveryPairAndNeverTheMostLoaded) {
  PowerOfTwoPolicy policy(/*seed=*/1);
  std::vector<int> picks(4);
  for (int i = 0; i < 6000; ++i) ++picks[Pick(&policy, {1, 2, 3, 4})];
  // Of six pairs three hold the first, two more the second.
  EXPECT_NEAR(picks[0], 3000, 200);
  EXPECT_NEAR(picks[1], 2000, 200);
  EXPECT_NEAR(picks[2], 1000, 200);
  EXPECT_EQ(picks[3], 0);
}

TEST(PowerOfTwoPolicyTest, GivesEqualsEqualChances) {
  PowerOfTwoPolicy policy(/*seed=*/2);
  std::vector<int> picks(3);
  for (int i = 0; i < 3000; ++i) ++picks[Pick(&policy, {1, 1, 1})];
  for (int count : picks) EXPECT_NEAR(count, 1000, 120);
}

TEST(PowerOfTwoPolicyTest, DoesTheSameWithTheSameSeed) {
  PowerOfTwoPolicy one(3);
  PowerOfTwoPolicy other(3);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Pick(&one, {1, 1, 1, 1}), Pick(&other, {1, 1, 1, 1}));
  }
}

TEST(PrefixAffinityPolicyTest, SendsAPrefixWhereItWasComputed) {
  PrefixAffinityPolicy policy({});
  EXPECT_EQ(Pick(&policy, {0, 0, 0}, Prompt(1, 4)), 0u);
  EXPECT_EQ(Pick(&policy, {0, 0, 0}, Prompt(2, 4)), 1u);
  EXPECT_EQ(Pick(&policy, {1, 1, 0}, Prompt(1, 4)), 0u);
  EXPECT_EQ(Pick(&policy, {1, 1, 0}, Prompt(2, 5)), 1u) << "a longer one";
  EXPECT_EQ(Pick(&policy, {1, 1, 0}, Prompt(3, 4)), 2u) << "a new one";
}

TEST(PrefixAffinityPolicyTest, LetsTheLoadDecideWithoutAPrefix) {
  PrefixAffinityPolicy policy({});
  LeastLoadedPolicy least_loaded;
  std::mt19937_64 random(4);
  for (int i = 0; i < 1000; ++i) {
    const std::vector<int64_t> loads = {
        int64_t(random() % 3), int64_t(random() % 3), int64_t(random() % 3)};
    EXPECT_EQ(Pick(&policy, loads), Pick(&least_loaded, loads));
  }
}

TEST(PrefixAffinityPolicyTest, StaysWithinTheMargin) {
  PrefixAffinityPolicy policy({.extra_requests = 3, .extra_load_ratio = 0.5});
  Pick(&policy, {0, 1}, Prompt(1, 4));  // At the first.
  EXPECT_EQ(Pick(&policy, {3, 0}, Prompt(1, 4)), 0u);
  EXPECT_EQ(Pick(&policy, {150, 100}, Prompt(1, 4)), 0u);
  EXPECT_EQ(Pick(&policy, {151, 100}, Prompt(1, 4)), 1u);
  // Now both have it: the load decides.
  EXPECT_EQ(Pick(&policy, {1, 0}, Prompt(1, 4)), 1u);
  EXPECT_EQ(Pick(&policy, {0, 1}, Prompt(1, 4)), 0u);
}

TEST(PrefixAffinityPolicyTest, WaitsForNoMoreThanItSaves) {
  PrefixAffinityPolicy policy({.extra_requests = 100});
  Pick(&policy, {0, 1}, Prompt(0, 9, 8));  // At the first.
  // Eight of nine parts are saved: four requests of one part each.
  EXPECT_EQ(Pick(&policy, {4, 0}, Prompt(1, 9, 8)), 0u);
  EXPECT_EQ(Pick(&policy, {5, 0}, Prompt(2, 9, 8)), 1u);
}

TEST(PrefixAffinityPolicyTest, LetsAShortPrefixDecideBetweenEqualsAlone) {
  PrefixAffinityPolicy policy({});
  Pick(&policy, {1, 0}, Prompt(0, 10, 1));  // At the second.
  for (uint32_t i = 1; i < 5; ++i) {
    EXPECT_EQ(Pick(&policy, {3, 3}, Prompt(i, 10, 1)), 1u);
  }
  EXPECT_EQ(Pick(&policy, {3, 4}, Prompt(5, 10, 1)), 0u);
}

TEST(PrefixAffinityPolicyTest, CountsWhatTheLeastLoadedOneHas) {
  PrefixAffinityPolicy policy({.extra_requests = 100});
  Pick(&policy, {0, 1}, Prompt(0, 9, 8));
  Pick(&policy, {9, 0}, Prompt(1, 9, 7));
  // The first has all of it, but the second lacks two parts only.
  EXPECT_EQ(Pick(&policy, {1, 0}, Prompt(0, 9, 8)), 1u);
}

TEST(PrefixAffinityPolicyTest, TakesTheSecondBestWhereTheBestIsTooBusy) {
  PrefixAffinityPolicy policy({.extra_requests = 2, .extra_load_ratio = 0});
  Pick(&policy, {0, 9, 9}, Prompt(1, 20, 19));
  Pick(&policy, {9, 0, 9}, Prompt(2, 20, 19));
  EXPECT_EQ(Pick(&policy, {9, 2, 0}, Prompt(1, 20, 19)), 1u);
}

TEST(PrefixAffinityPolicyTest, SpreadsAPromptThatEverybodySends) {
  PrefixAffinityPolicy policy({});
  std::vector<int64_t> loads(4);
  for (int i = 0; i < 400; ++i) ++loads[Pick(&policy, loads, Prompt(1, 8))];
  for (int64_t load : loads) EXPECT_NEAR(static_cast<double>(load), 100, 2);
}

TEST(PrefixAffinityPolicyTest, HasNoAffinityToAWorkerThatRestarted) {
  PrefixAffinityPolicy policy({});
  const std::vector<PrefixKey> prompt = Prompt(1, 4);
  const std::vector<int64_t> loads = {1, 0};
  std::vector<RankName> names = Names(2);
  const auto pick = [&](const std::vector<int64_t>& at) {
    return policy.Pick({.loads = at, .names = names, .prefix = prompt});
  };
  EXPECT_EQ(pick({0, 1}), 0u);
  EXPECT_EQ(pick(loads), 0u);
  names[0].incarnation = 2;
  EXPECT_EQ(pick(loads), 1u);
}

TEST(PrefixAffinityPolicyTest, HoldsTheLargestLoadsWithoutOverflow) {
  PrefixAffinityPolicy policy({});
  const int64_t most = 2 * int64_t{UINT32_MAX};
  Pick(&policy, {most, most + 1}, Prompt(1, 4));
  EXPECT_EQ(Pick(&policy, {most, 0}, Prompt(1, 4)), 1u);
}

TEST(MakeRoutingPolicyTest, KnowsTheFourNamesAndNoOther) {
  const auto is = [](std::string_view name, const auto& policy) {
    const std::unique_ptr<RoutingPolicy> owner = MakeRoutingPolicy(name);
    const RoutingPolicy* const made = owner.get();
    return made != nullptr && typeid(*made) == typeid(policy);
  };
  EXPECT_TRUE(is("least_loaded", LeastLoadedPolicy()));
  EXPECT_TRUE(is("round_robin", RoundRobinPolicy()));
  EXPECT_TRUE(is("power_of_two", PowerOfTwoPolicy(0)));
  EXPECT_TRUE(is("prefix_affinity", PrefixAffinityPolicy({})));
  EXPECT_EQ(MakeRoutingPolicy("fastest"), nullptr);
}

}  // namespace
}  // namespace baton
