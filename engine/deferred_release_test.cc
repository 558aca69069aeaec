#include "engine/deferred_release.h"

#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(DeferredReleaseTest, AnItemStaysUntilTheStepsLaunchedBeforeItAreDone) {
  DeferredRelease<int> deferred;
  std::vector<int> released;
  const auto release = [&released](int item) { released.push_back(item); };
  deferred.Add(StepId(4), 40);
  deferred.Add(StepId(5), 50);
  deferred.Add(StepId(5), 51);
  deferred.Collect(StepId(3), release);
  EXPECT_TRUE(released.empty());
  deferred.Collect(StepId(4), release);
  EXPECT_EQ(released, std::vector<int>{40});
  EXPECT_EQ(deferred.size(), 2u);
  deferred.Collect(StepId(7), release);
  EXPECT_EQ(released, (std::vector<int>{40, 50, 51}));
}

TEST(DeferredReleaseTest, TagsThatGoBackDie) {
  DeferredRelease<int> deferred;
  deferred.Add(StepId(2), 0);
  EXPECT_DEATH(deferred.Add(StepId(1), 0), "CHECK");
}

}  // namespace
}  // namespace baton
