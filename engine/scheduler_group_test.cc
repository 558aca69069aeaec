// A rank's plans under its group's decisions.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "gtest/gtest.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

constexpr uint32_t kBlock = CacheSpec::kBlockTokens;

// A scheduler whose launched plans are computed at once.
class SchedulerGroupTest : public testing::Test {
 protected:
  void Start(const EngineOptions& options, uint32_t num_blocks) {
    pool_ = std::make_unique<HeapKvPool>(num_blocks, 64);
    const CacheSpec spec = {.groups = {{"rows", 1}}};
    kv_ = std::make_unique<KvCacheManager>(spec, pool_->get());
    scheduler_ = std::make_unique<Scheduler>(options, kv_.get());
  }

  void TearDown() override {
    for (const auto& sequence : sequences_) {
      scheduler_->Remove(sequence.get());
      if (sequence->kv.state() != KvRangeState::kFree) {
        kv_->Release(&sequence->kv);
      }
      sequence->SetPhase(SequencePhase::kFinished);
    }
  }

  SequenceMetadata* Add(uint32_t num_tokens) {
    GenerationRequest request;
    request.token_ids.assign(num_tokens, 1);
    request.original_prompt_tokens = num_tokens;
    sequences_.push_back(std::make_unique<SequenceMetadata>(
        std::move(request), nullptr, absl::UnixEpoch()));
    SequenceMetadata* sequence = sequences_.back().get();
    sequence->id = SequenceId(sequences_.size());
    sequence->max_total_tokens = 10000;
    scheduler_->Enqueue(sequence);
    scheduler_->Admit();
    return sequence;
  }

  // Rows of the plan, by sequence.
  std::vector<uint32_t> Plan(StepType type, uint32_t max_rows) {
    StepId next = step_;
    scheduler_->PlanWithin({.type = type, .max_rows = max_rows}, ++next,
                           &plan_);
    std::vector<uint32_t> rows;
    for (const ScheduledRows& planned : plan_.rows) {
      rows.push_back(planned.num_rows);
    }
    return rows;
  }

  void Launch() {
    ++step_;
    scheduler_->MarkInFlight(&plan_);
    scheduler_->CheckInvariants();
    for (const ScheduledRows& planned : plan_.rows) {
      SequenceMetadata* sequence = planned.sequence;
      sequence->inflight_rows -= planned.num_rows;
      sequence->computed_rows += planned.num_rows;
      if (!planned.draws) continue;
      if (sequence->phase() == SequencePhase::kPrefilling) {
        kv_->Transition(&sequence->kv, KvRangeState::kOwned);
        sequence->SetPhase(SequencePhase::kDecoding);
      }
      --sequence->total_inflight_tokens;
      --sequence->inflight_draws;
      sequence->tokens.push_back(1);
    }
  }

  std::unique_ptr<HeapKvPool> pool_;
  std::unique_ptr<KvCacheManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<SequenceMetadata>> sequences_;
  StepId step_;
  SchedulerOutput plan_;
};

TEST_F(SchedulerGroupTest, WishesTellWhatTheNextStepCouldHold) {
  Start({.max_batched_tokens = 100, .max_chunk_tokens = 80}, 64);
  EXPECT_EQ(scheduler_->Wish().prefill_tokens, 0u);
  EXPECT_EQ(scheduler_->Wish().decode_rows, 0u);
  Add(90);
  EXPECT_EQ(scheduler_->Wish().prefill_tokens, 80u) << "a chunk";
  Add(70);
  EXPECT_EQ(scheduler_->Wish().prefill_tokens, 100u) << "a step";
  Plan(StepType::kPrefill, 100);
  Launch();
  EXPECT_EQ(scheduler_->Wish().prefill_tokens, 60u);
  Plan(StepType::kPrefill, 100);
  Launch();
  EXPECT_EQ(scheduler_->Wish().prefill_tokens, 0u);
  EXPECT_EQ(scheduler_->Wish().decode_rows, 2u);
}

TEST_F(SchedulerGroupTest, PlansKeepWithinTheBoundsOfTheGroup) {
  Start({}, 64);
  for (int i = 0; i < 3; ++i) Add(10);
  EXPECT_EQ(Plan(StepType::kPrefill, 25), (std::vector<uint32_t>{10, 10, 5}));
  EXPECT_EQ(Plan(StepType::kPrefill, 30), (std::vector<uint32_t>{10, 10, 10}));
  Launch();
  EXPECT_EQ(Plan(StepType::kPrefill, 30), (std::vector<uint32_t>{}));
  EXPECT_EQ(Plan(StepType::kDecode, 2), (std::vector<uint32_t>{1, 1}));
  EXPECT_EQ(Plan(StepType::kDecode, 0), (std::vector<uint32_t>{}));
}

TEST_F(SchedulerGroupTest, AnEmptyStepIsLaunchedToo) {
  Start({}, 64);
  EXPECT_TRUE(Plan(StepType::kDecode, 8).empty());
  Launch();
  EXPECT_EQ(plan_.step, StepId(1));
}

TEST_F(SchedulerGroupTest, AForgottenPrefillHasChangedNothing) {
  Start({}, 8);
  SequenceMetadata* sequence = Add(100);
  const uint32_t num_free = kv_->num_free();
  EXPECT_EQ(Plan(StepType::kPrefill, 512), (std::vector<uint32_t>{100}));
  EXPECT_TRUE(Plan(StepType::kDecode, 512).empty()) << "what came of the vote";
  Launch();
  EXPECT_EQ(kv_->num_free(), num_free);
  EXPECT_EQ(sequence->kv.state(), KvRangeState::kReserved);
  EXPECT_EQ(sequence->launched_rows(), 0u);
  EXPECT_EQ(Plan(StepType::kPrefill, 512), (std::vector<uint32_t>{100}));
}

// Else the group would decode in vain until its next ANY point: nobody gives a
// block up before.
TEST_F(SchedulerGroupTest, ASequenceWithoutABlockToGrowIntoWantsNoDecodeStep) {
  Start({.max_batched_tokens = 2 * kBlock, .max_chunk_tokens = kBlock}, 5);
  Add(2 * kBlock + 1);
  SequenceMetadata* younger = Add(kBlock - 1);
  Plan(StepType::kPrefill, 2 * kBlock);
  Launch();
  while (scheduler_->Wish().decode_rows > 0) {
    EXPECT_EQ(Plan(StepType::kDecode, 1), (std::vector<uint32_t>{1}));
    Launch();
  }
  EXPECT_EQ(younger->num_tokens(), 2 * kBlock + 1) << "two blocks full";
  EXPECT_TRUE(Plan(StepType::kDecode, 1).empty());
  EXPECT_EQ(scheduler_->Wish().prefill_tokens, kBlock) << "of the older one";
}

TEST_F(SchedulerGroupTest, TheOldestMayAlwaysGrow) {
  Start({.max_batched_tokens = 3 * kBlock, .max_chunk_tokens = kBlock}, 5);
  Add(kBlock - 1);
  SequenceMetadata* younger = Add(2 * kBlock + 1);
  Plan(StepType::kPrefill, kBlock);
  Launch();
  for (uint32_t i = 0; i < 2 * kBlock; ++i) {
    EXPECT_EQ(scheduler_->Wish().decode_rows, 1u);
    EXPECT_EQ(Plan(StepType::kDecode, 1), (std::vector<uint32_t>{1}));
    Launch();
  }
  EXPECT_EQ(younger->phase(), SequencePhase::kWaiting);
}

}  // namespace
}  // namespace baton
