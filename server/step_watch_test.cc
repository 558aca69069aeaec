#include "server/step_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <string>

#include "tests/fakes/engine_world.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// One engine whose device takes what the test says.
class StepWatchTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kTimeout = absl::Minutes(1);

  bool Check() { return watch_.Check(); }
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }
  void HangTheDevice() {
    world_.rank().stream().set_task_time(absl::Hours(10));
  }
  // Steps, until the device is at one that takes longer than a turn.
  void Turn() {
    for (int i = 0; i < 20; ++i) world_.driver().Turn();
  }

  FakeRank::Options options_ = {.model = {.max_context_tokens = 4096}};
  EngineWorld world_{options_};
  prometheus::Registry registry_;
  StepWatch watch_{{.timeout = kTimeout},
                   {&world_.engine()},
                   &world_.clock(),
                   &registry_,
                   "test"};
};

TEST_F(StepWatchTest, AnIdleEngineLivesHoweverLong) {
  EXPECT_TRUE(Check());
  world_.Submit(MakeRequest(1, 10, 4));
  world_.RunUntilIdle();
  world_.clock().Advance(absl::Hours(10));
  EXPECT_TRUE(Check());
  EXPECT_THAT(Metrics(), HasSubstr("baton_stuck_steps_total{role=\"test\"} 0"));
}

TEST_F(StepWatchTest, AHangingDeviceIsFoundCountedAndLoggedOnce) {
  world_.Submit(MakeRequest(1, 10, 4));
  world_.RunUntilIdle();
  HangTheDevice();
  auto& hanging = world_.Submit(MakeRequest(2, 10, 4));
  Turn();
  EXPECT_TRUE(Check());
  world_.clock().Advance(kTimeout - absl::Seconds(1));
  EXPECT_TRUE(Check());
  ::testing::internal::CaptureStderr();
  world_.clock().Advance(absl::Seconds(2));
  EXPECT_FALSE(Check());
  EXPECT_FALSE(Check());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("stuck step "));
  EXPECT_THAT(log, HasSubstr("in flight"));
  EXPECT_EQ(log.find("stuck step "), log.rfind("stuck step "));
  EXPECT_THAT(Metrics(), HasSubstr("baton_stuck_steps_total{role=\"test\"} 1"));

  world_.rank().stream().set_task_time(absl::ZeroDuration());
  world_.clock().Advance(absl::Hours(200));
  world_.RunUntilIdle();
  EXPECT_TRUE(Check()) << "it ended after all";
  world_.ExpectExact(hanging);
}

TEST_F(StepWatchTest, ManyStepsOfHalfTheTimeoutLive) {
  world_.rank().stream().set_task_time(kTimeout / 4);
  world_.Submit(MakeRequest(1, 10, 50));
  while (!world_.engine().idle()) {
    if (!world_.driver().Turn()) world_.clock().Advance(absl::Seconds(1));
    ASSERT_TRUE(Check());
  }
}

TEST_F(StepWatchTest, AStepThatIsPredictedToTakeLongMayTakeLong) {
  // The first prefill step: a sixteenth of the timeout for 10 rows.
  world_.rank().stream().set_task_time(kTimeout / 16);
  world_.Submit(MakeRequest(1, 10, 1));
  while (!world_.engine().idle()) {
    if (!world_.driver().Turn()) world_.clock().Advance(absl::Seconds(1));
  }
  HangTheDevice();
  auto& hanging =
      world_.Submit(MakeRequest(2, 400, 1));  // 40 times as many rows.
  Turn();
  world_.clock().Advance(20 * kTimeout);
  EXPECT_TRUE(Check());
  world_.clock().Advance(1000 * kTimeout);
  EXPECT_FALSE(Check());
  world_.clock().Advance(absl::Hours(200));
  world_.RunUntilIdle();
  world_.ExpectExact(hanging);
}

TEST_F(StepWatchTest, ATimeoutOfZeroNeverFails) {
  prometheus::Registry registry;
  StepWatch never({.timeout = absl::ZeroDuration()}, {&world_.engine()},
                  &world_.clock(), &registry, "never");
  HangTheDevice();
  world_.Submit(MakeRequest(1, 10, 1));
  Turn();
  world_.clock().Advance(absl::Hours(50));
  EXPECT_TRUE(never.Check());
  EXPECT_FALSE(Check());
  world_.clock().Advance(absl::Hours(200));
  world_.RunUntilIdle();
}

}  // namespace
}  // namespace baton
