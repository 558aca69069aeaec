#include "engine/worker.h"

#include <memory>
#include <set>
#include <utility>

#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/kv_cache_manager.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

TEST(WorkerStepStateTest, ExactlyTheseTransitionsAreLegal) {
  using enum StepState;
  const std::set<std::pair<StepState, StepState>> legal = {
      {kFree, kForwarded}, {kForwarded, kSampled}, {kSampled, kFree}};
  for (int from = 0; from < kNumStepStates; ++from) {
    for (int to = 0; to < kNumStepStates; ++to) {
      const std::pair edge(static_cast<StepState>(from),
                           static_cast<StepState>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge));
    }
  }
}

const EngineOptions kOptions = {.max_running_requests = 2,
                                .max_batched_tokens = 8,
                                .max_chunk_tokens = 8,
                                .pipeline_depth = 2};

// Two steps deep, over one sequence of three tokens.
class WorkerTest : public testing::Test {
 protected:
  WorkerTest()
      : model_({}),
        pool_(4, model_.info().cache.block_bytes()),
        kv_(model_.info().cache, pool_.get()),
        executor_(kOptions,
                  {.model = &model_, .stream = &stream_, .clock = &clock_}),
        worker_(kOptions, &executor_, 4) {
    executor_.SetAfterStep({[](void*) {}, nullptr});
    model_.BindKvPool(pool_.get());
    GenerationRequest request;
    request.token_ids = {1, 2, 3};
    request.original_prompt_tokens = 2;
    request.sampling.temperature = 0;
    sequence_ = std::make_unique<SequenceMetadata>(std::move(request), nullptr,
                                                   absl::UnixEpoch());
    sequence_->max_total_tokens = 8;
    CHECK(kv_.Reserve(&sequence_->kv, 3));
  }
  ~WorkerTest() override { kv_.Release(&sequence_->kv); }

  WorkerStepState* Launch(uint32_t first, uint32_t count, bool draws) {
    WorkerStepState* step = worker_.NextStep();
    if (step == nullptr) return nullptr;
    step->plan = SchedulerOutput();
    step->plan.rows.push_back({.sequence = sequence_.get(),
                               .first_position = first,
                               .num_rows = count,
                               .draws = draws});
    step->plan.num_rows = count;
    worker_.LaunchForward(step);
    worker_.LaunchSample(step);
    return step;
  }

  void PollAll() {
    while (stream_.Poll()) {
    }
  }

  SimulatedClock clock_;
  CpuDeviceStream stream_;
  FakeModelRunner model_;
  HeapKvPool pool_;
  KvCacheManager kv_;
  std::unique_ptr<SequenceMetadata> sequence_;
  CpuStepExecutor executor_;
  Worker worker_;
};

TEST_F(WorkerTest, StepsAreDoneInTheOrderOfTheirLaunch) {
  WorkerStepState* first = Launch(0, 2, false);
  WorkerStepState* second = Launch(2, 1, true);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(Launch(3, 1, false), nullptr);  // The ring is full.
  EXPECT_EQ(worker_.num_in_flight(), 2);
  EXPECT_EQ(worker_.OldestDone(), nullptr);
  stream_.Poll();
  EXPECT_EQ(worker_.OldestDone(), nullptr);  // Forwarded, not sampled.
  stream_.Poll();
  EXPECT_EQ(worker_.OldestDone(), first);
  PollAll();
  worker_.Retire(first);
  EXPECT_EQ(worker_.OldestDone(), second);
  worker_.Retire(second);
  EXPECT_TRUE(worker_.idle());
}

TEST_F(WorkerTest, RowsCarryTheOriginalPromptLength) {
  WorkerStepState* step = Launch(1, 2, true);
  EXPECT_EQ(step->input.rows.at(0).prompt_tokens, 2u);
  PollAll();
  worker_.Retire(step);
}

TEST_F(WorkerTest, ChunksGiveTheTokenOfTheWhole) {
  WorkerStepState* step = Launch(0, 3, true);
  PollAll();
  const uint32_t whole = step->output.samples.at(0).tokens[0].token_id;
  worker_.Retire(step);
  worker_.Retire((Launch(0, 2, false), PollAll(), worker_.OldestDone()));
  step = Launch(2, 1, true);
  PollAll();
  EXPECT_EQ(step->output.samples.at(0).tokens[0].token_id, whole);
  worker_.Retire(step);
}

TEST_F(WorkerTest, AStepReadsNothingThatTheEngineChangesAfterItsLaunch) {
  WorkerStepState* step = Launch(0, 3, true);
  PollAll();
  const uint32_t token = step->output.samples.at(0).tokens[0].token_id;
  worker_.Retire(step);
  step = Launch(0, 3, true);
  sequence_->tokens.assign(3, 9);
  sequence_->tokens.shrink_to_fit();
  PollAll();
  EXPECT_EQ(step->output.samples.at(0).tokens[0].token_id, token);
  worker_.Retire(step);
}

}  // namespace
}  // namespace baton
