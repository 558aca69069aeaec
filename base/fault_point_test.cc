#include "base/fault_point.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace baton {
namespace {

#ifdef BATON_FAULT_POINTS

constexpr FaultPoint kPoint = FaultPoint::kKvExportDone;

TEST(FaultPointTest, NothingHappensWhereNothingIsArmed) {
  EXPECT_FALSE(ReachFaultPoint(FaultPoint::kDrain));
}

TEST(FaultPointTest, FailsEachTimeOrTheCountedTimeAlone) {
  ASSERT_EQ(ArmFaultPoints("kv_export_done:fail,kv_export_tail:fail:2"), "");
  for (int i = 1; i <= 4; ++i) {
    EXPECT_TRUE(ReachFaultPoint(kPoint));
    EXPECT_EQ(ReachFaultPoint(FaultPoint::kKvExportTail), i == 2);
  }
}

TEST(FaultPointTest, SaysWhatItDoesNotKnow) {
  EXPECT_EQ(ArmFaultPoints("nowhere:kill"), "there is no point nowhere");
  EXPECT_EQ(ArmFaultPoints("drain:explode"), "there is no action explode");
  EXPECT_EQ(ArmFaultPoints("drain:delay"), "there is no action delay");
  EXPECT_EQ(ArmFaultPoints("drain:kill:0"), "not a count: 0");
  EXPECT_EQ(ArmFaultPoints(""), "");
}

TEST(FaultPointTest, ADelayPasses) {
  ASSERT_EQ(ArmFaultPoints("kv_export_done:delay30"), "");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(ReachFaultPoint(kPoint));
  EXPECT_GE(std::chrono::steady_clock::now() - start,
            std::chrono::milliseconds(30));
}

// The child's state after it has reached the point.
int StateOfChild(const std::string& rules) {
  const pid_t child = fork();
  if (child == 0) {
    ArmFaultPoints(rules);
    ReachFaultPoint(kPoint);
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return status;
}

TEST(FaultPointTest, AKillAndAStopComeFromTheSystem) {
  const int killed = StateOfChild("kv_export_done:kill");
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL) << killed;
  const int stopped = StateOfChild("kv_export_done:stop");
  EXPECT_TRUE(WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP) << stopped;
  const int unharmed = StateOfChild("kv_export_done:kill:2");
  EXPECT_TRUE(WIFEXITED(unharmed) && WEXITSTATUS(unharmed) == 7) << unharmed;
}

#else

TEST(FaultPointTest, WithoutThePointsReachingOneIsNothing) {
  static_assert(!ReachFaultPoint(FaultPoint::kDrain));
}

#endif

}  // namespace
}  // namespace baton
