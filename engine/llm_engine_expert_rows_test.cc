// What the observer is told of a group's step: its number, and the rows of each
// expert slot.
#include <memory>
#include <utility>
#include <vector>

#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr uint32_t kSlots = 3;
constexpr uint32_t kRowsOfOthers = 7;  // In each call, in the first slot.

// A rank of a group with two layers of experts, the second one the drafter's. A
// row goes to the last slot of its layer.
class GroupRunner final : public ModelRunner {
 public:
  GroupRunner(FakeModelRunner* model, uint32_t num_ranks)
      : model_(model), info_(model->info()) {
    info_.num_ranks = num_ranks;
    info_.num_experts = kSlots * num_ranks;
    info_.num_expert_layers = 2;
    info_.slots_per_rank = kSlots;
  }

  const ModelRunnerInfo& info() const override { return info_; }
  void BindKvPool(const KvPool* pool) override { model_->BindKvPool(pool); }
  void Forward(const ForwardBatch& batch,
               const ForwardOutput& output) override {
    Count(batch, output, 0);
    model_->Forward(batch, output);
  }
  void Draft(const ForwardBatch& batch, MatrixView<const float> hidden,
             const ForwardOutput& output) override {
    Count(batch, output, kSlots);
    model_->Draft(batch, hidden, output);
  }
  absl::Status group_status() const override { return status; }

  absl::Status status;

 private:
  void Count(const ForwardBatch& batch, const ForwardOutput& output,
             uint32_t first_slot) const {
    if (info_.num_ranks == 1) {
      EXPECT_TRUE(output.expert_rows.empty());
      return;
    }
    ASSERT_EQ(output.expert_rows.size(), 2 * kSlots);
    output.expert_rows[first_slot] += kRowsOfOthers;
    output.expert_rows[first_slot + kSlots - 1] +=
        static_cast<uint32_t>(batch.token_ids.size());
  }

  FakeModelRunner* const model_;
  ModelRunnerInfo info_;
};

// A step's number and its rows.
using Told = std::pair<uint64_t, std::vector<uint32_t>>;

class LLMEngineExpertRowsTest : public testing::Test {
 protected:
  explicit LLMEngineExpertRowsTest(uint32_t num_ranks)
      : model_({.drafter = true}),
        pool_(8, model_.info().cache.block_bytes()),
        runner_(&model_, num_ranks),
        executor_(kOptions, {.model = &runner_,
                             .pool = pool_.get(),
                             .stream = &stream_,
                             .clock = &clock_}),
        engine_(kOptions, {.executor = &executor_,
                           .pool = pool_.get(),
                           .clock = &clock_,
                           .observer = [this](const StepStats& stats) {
                             told_.push_back({stats.step.value(),
                                              {stats.expert_rows.begin(),
                                               stats.expert_rows.end()}});
                           }}) {
    runner_.BindKvPool(pool_.get());
  }

  // A step of the group, to its commit.
  void Step(StepType type, uint32_t max_rows) {
    engine_.Collect();
    engine_.PlanStep({.type = type, .max_rows = max_rows, .max_drafts = 2});
    engine_.LaunchStep({.num_draft_passes = 2});
    while (stream_.Poll()) {
    }
    engine_.Collect();
  }

  static constexpr EngineOptions kOptions = [] {
    EngineOptions options;
    options.num_draft_tokens = 2;
    return options;
  }();

  SimulatedClock clock_;
  CpuDeviceStream stream_;
  FakeModelRunner model_;
  HeapKvPool pool_;
  GroupRunner runner_;
  CpuStepExecutor executor_;
  std::vector<Told> told_;
  LLMEngine engine_;
};

class LLMEngineGroupExpertRowsTest : public LLMEngineExpertRowsTest {
 protected:
  LLMEngineGroupExpertRowsTest() : LLMEngineExpertRowsTest(2) {}
};

class LLMEngineAloneExpertRowsTest : public LLMEngineExpertRowsTest {
 protected:
  LLMEngineAloneExpertRowsTest() : LLMEngineExpertRowsTest(1) {}
};

// The drafter has a row for each token but the first, and one for the token
// drawn; its second pass has one for the first draft.
TEST_F(LLMEngineGroupExpertRowsTest, EachStepTellsItsOwnRowsAnEmptyOneToo) {
  RecordingTokenSink sink;
  Step(StepType::kPrefill, 10);
  ASSERT_TRUE(engine_.Submit(MakeRequest(1, 5, 20), &sink).ok());
  Step(StepType::kPrefill, 10);
  Step(StepType::kDecode, 0);
  const uint32_t others = kRowsOfOthers;
  EXPECT_EQ(told_, (std::vector<Told>{
                       {1, {others, 0, 0, 2 * others, 0, 0}},
                       {2, {others, 0, 5, 2 * others, 0, 5 + 1}},
                       {3, {others, 0, 0, 2 * others, 0, 0}},
                   }));
  engine_.EndUnfinished(absl::CancelledError("the test is over"));
  EXPECT_TRUE(sink.finished());
}

TEST_F(LLMEngineGroupExpertRowsTest, AnAbandonedStepTellsNoRows) {
  Step(StepType::kDecode, 0);
  runner_.status = absl::UnavailableError("a rank is lost");
  Step(StepType::kDecode, 0);
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_[0].second.size(), 2 * kSlots);
  EXPECT_EQ(told_[1], (Told{2, {}}));
}

TEST_F(LLMEngineAloneExpertRowsTest, NothingIsCounted) {
  RecordingTokenSink sink;
  ASSERT_TRUE(engine_.Submit(MakeRequest(1, 5, 3), &sink).ok());
  while (!engine_.idle()) {
    engine_.Advance();
    stream_.Poll();
  }
  EXPECT_TRUE(sink.finished());
  ASSERT_FALSE(told_.empty());
  for (size_t i = 0; i < told_.size(); ++i) {
    EXPECT_EQ(told_[i], (Told{i + 1, {}}));
  }
}

}  // namespace
}  // namespace baton
