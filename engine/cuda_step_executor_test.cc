#include "engine/cuda_step_executor.h"

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "kernels/cuda/stand_in_model.h"
#include "tests/fakes/cuda_stand_in_rank.h"
#include "tests/fakes/fake_cuda_device.h"

namespace baton {
namespace {

// The GPU is as slow, and as late to report, as chance will have it.
void RunAtRandomPace(uint32_t seed, FakeCudaDevice* device,
                     CudaStandInRank* rank) {
  std::mt19937 random(seed);
  while (!rank->engine().idle()) {
    rank->engine().Advance();
    rank->engine().CheckInvariants();
    if (random() % 3 == 0) device->RunStep();
    if (random() % 2 == 0) rank->executor().Poll();
  }
  ASSERT_TRUE(rank->load().done());
}

TEST(CudaStepExecutorTest, TokensAreTheCpuStreamsAtEveryDepth) {
  for (uint32_t depth : {1, 2, 3}) {
    FakeCudaDevice device;
    CudaStandInRank rank({.depth = depth}, device.api());
    RunAtRandomPace(depth, &device, &rank);
    EXPECT_EQ(rank.CountWrong(), 0u);
    EXPECT_EQ(rank.num_drafts(), 0u);
  }
}

TEST(CudaStepExecutorTest, DraftsAreVerifiedAndChangeNoToken) {
  for (uint32_t depth : {1, 2, 3}) {
    FakeCudaDevice device;
    CudaStandInRank rank({.depth = depth, .drafts = 3}, device.api());
    RunAtRandomPace(depth, &device, &rank);
    EXPECT_EQ(rank.CountWrong(), 0u);
    EXPECT_GT(rank.num_accepted(), 0u);
    EXPECT_LT(rank.num_accepted(), rank.num_drafts());
  }
}

TEST(CudaStepExecutorTest, PreemptionChangesNoToken) {
  for (uint32_t drafts : {0, 3}) {
    FakeCudaDevice device;
    CudaStandInRank rank({.depth = 3,
                          .drafts = drafts,
                          .num_blocks = 16,
                          .load = {.prompt_tokens = 20, .max_tokens = 400}},
                         device.api());
    RunAtRandomPace(7, &device, &rank);
    EXPECT_EQ(rank.CountWrong(), 0u);
    EXPECT_GT(rank.num_preemptions(), 0u);
  }
}

TEST(CudaStepExecutorTest, TheDevicesSideMayBeAThread) {
  FakeCudaDevice device;
  CudaStandInRank rank({.depth = 3, .drafts = 2}, device.api());
  std::atomic<bool> stop{false};
  std::thread side([&] {
    while (!stop.load()) {
      device.RunStep();
      rank.executor().Poll();
    }
  });
  while (!rank.load().done()) {
    if (!rank.engine().Advance()) rank.engine().WaitForWork(absl::Seconds(60));
  }
  // The task behind the last step may still run.
  while (!rank.engine().idle()) rank.engine().Advance();
  stop.store(true);
  side.join();
  EXPECT_EQ(rank.CountWrong(), 0u);
}

const CudaStepExecutor::Options kOptions = {
    .engine = {.max_running_requests = 8}, .num_blocks = 8};

// One step by hand: a prompt of three tokens that draws.
class OneStepTest : public testing::Test {
 protected:
  OneStepTest()
      : executor_(CudaStepExecutor::Create(kOptions, device_.api()).value()) {
    executor_->SetAfterStep(
        {[](void* count) { ++*static_cast<int*>(count); }, &after_steps_});
    input_.token_ids = {7, 8, 9};
    input_.block_tables = {5};
    input_.rows = {{.slot = 2, .num_rows = 3, .end_position = 10, .sample = 0}};
    input_.samples.resize(1);
    output_.samples.resize(8);
  }

  DeviceEvent Launch() {
    executor_->LaunchForward(&input_, &output_);
    return executor_->LaunchSample(&input_, &output_);
  }

  FakeCudaDevice device_;
  std::unique_ptr<CudaStepExecutor> executor_;
  StepInput input_;
  StepOutput output_;
  int after_steps_ = 0;
};

TEST_F(OneStepTest, FiresOnceTheDeviceHasReported) {
  const DeviceEvent event = Launch();
  EXPECT_FALSE(executor_->HasFired(event));
  EXPECT_FALSE(executor_->Poll());
  EXPECT_FALSE(executor_->idle());
  ASSERT_TRUE(device_.RunStep());
  EXPECT_TRUE(executor_->HasFired(event));
  EXPECT_FALSE(executor_->idle()) << "the task behind the event has not run";
  EXPECT_EQ(after_steps_, 0);
  EXPECT_TRUE(executor_->Poll());
  EXPECT_EQ(after_steps_, 1);
  EXPECT_TRUE(executor_->idle());
  EXPECT_FALSE(executor_->Poll());
}

TEST_F(OneStepTest, TheReportBecomesTheOutput) {
  const DeviceEvent event = Launch();
  device_.set_nanoseconds(1000);
  device_.RunStep();
  ASSERT_TRUE(executor_->HasFired(event));
  EXPECT_EQ(output_.num_rows, 3u);
  EXPECT_EQ(output_.device_start, absl::FromUnixNanos(1000));
  EXPECT_EQ(output_.device_end, absl::FromUnixNanos(1000));
  uint64_t row = 0;
  for (uint32_t i = 0; i < 3; ++i) row = StandInRow(row, 7 + i, i);
  EXPECT_EQ(output_.samples[0].num_tokens, 1u);
  EXPECT_TRUE(output_.samples[0].sampleable);
  EXPECT_EQ(output_.samples[0].tokens[0].token_id, StandInToken(row, 512));
  executor_->Poll();
}

TEST_F(OneStepTest, AnEventWhosePlaceWasGivenOnHasFired) {
  const DeviceEvent first = Launch();
  device_.RunStep();
  executor_->Poll();
  for (int i = 0; i < 2; ++i) {
    Launch();
    EXPECT_TRUE(executor_->HasFired(first));
    device_.RunStep();
    executor_->Poll();
  }
}

using CudaStepExecutorDeathTest = OneStepTest;

TEST_F(CudaStepExecutorDeathTest, AGpuThatFailsEndsTheProcess) {
  Launch();
  device_.Fail("an illegal address");
  EXPECT_DEATH(
      {
        while (true) executor_->Poll();
      },
      "an illegal address");
  device_.RunStep();
  executor_->Poll();
}

TEST(CudaStepExecutorCreateTest, AFailureSaysWhichGpuAndWhy) {
  FakeCudaDevice device;
  device.Fail("out of memory");
  EXPECT_EQ(CudaStepExecutor::Create(kOptions, device.api()).status(),
            absl::UnavailableError("GPU 0: out of memory"));
}

TEST(CudaStepExecutorCreateTest, TheDeviceEndsWithTheExecutor) {
  FakeCudaDevice device;
  CudaStepExecutor::Create(kOptions, device.api()).value();
  EXPECT_FALSE(device.created());
}

}  // namespace
}  // namespace baton
