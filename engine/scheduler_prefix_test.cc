// Who is admitted when the prefix cache has a part of a prompt, or will have.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "gtest/gtest.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

// A scheduler and its pool; every row planned is computed at once.
class SchedulerPrefixTest : public testing::Test {
 protected:
  void Start(uint32_t num_blocks) {
    pool_ = std::make_unique<HeapKvPool>(num_blocks, 64);
    const CacheSpec spec = {.groups = {{"rows", 1}}};
    kv_ = std::make_unique<KvCacheManager>(spec, pool_->get());
    EngineOptions options;
    options.max_chunk_tokens = 64;
    options.max_batched_tokens = 64;
    scheduler_ = std::make_unique<Scheduler>(options, kv_.get());
  }

  void TearDown() override {
    for (auto& sequence : sequences_) {
      if (sequence->phase() != SequencePhase::kFinished) Finish(sequence.get());
    }
  }

  // Of so many tokens, which are alike.
  SequenceMetadata* Add(uint32_t num_tokens, uint32_t token = 1,
                        std::optional<SequenceId> first_sample = {}) {
    GenerationRequest request;
    request.token_ids.assign(num_tokens, token);
    request.original_prompt_tokens = num_tokens;
    sequences_.push_back(std::make_unique<SequenceMetadata>(
        std::move(request), nullptr, absl::UnixEpoch()));
    SequenceMetadata* sequence = sequences_.back().get();
    sequence->id = SequenceId(sequences_.size());
    sequence->first_sample = first_sample;
    sequence->max_total_tokens = 10000;
    sequence->max_cached_rows = std::numeric_limits<uint32_t>::max();
    sequence->prefix.Extend(sequence->tokens);
    scheduler_->Enqueue(sequence);
    return sequence;
  }

  std::vector<uint64_t> Admit() {
    std::vector<uint64_t> ids;
    for (const SequenceMetadata* sequence : scheduler_->Admit()) {
      ids.push_back(sequence->id.value());
    }
    scheduler_->CheckInvariants();
    return ids;
  }

  void Step() {
    scheduler_->Schedule(++step_, &plan_);
    for (const ScheduledRows& rows : plan_.rows) {
      SequenceMetadata* sequence = rows.sequence;
      sequence->computed_rows += rows.num_rows;
      sequence->inflight_rows -= rows.num_rows;
      kv_->CachePrefix(
          sequence->kv,
          std::span(sequence->tokens).first(sequence->rows_to_cache()),
          &sequence->prefix);
      if (!rows.draws) continue;
      if (sequence->phase() == SequencePhase::kPrefilling) {
        kv_->Transition(&sequence->kv, KvRangeState::kOwned);
        sequence->SetPhase(SequencePhase::kDecoding);
      }
      --sequence->total_inflight_tokens;
      --sequence->inflight_draws;
      sequence->tokens.push_back(2);
    }
  }

  void Finish(SequenceMetadata* sequence) {
    scheduler_->Remove(sequence);
    kv_->Release(&sequence->kv);
    sequence->SetPhase(SequencePhase::kFinished);
  }

  // Its whole blocks are cached, and idle.
  void Leave(uint32_t num_tokens, uint32_t token = 1) {
    SequenceMetadata* sequence = Add(num_tokens, token);
    Admit();
    while (sequence->computed_rows < num_tokens) Step();
    Finish(sequence);
  }

  std::unique_ptr<HeapKvPool> pool_;
  std::unique_ptr<KvCacheManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<SequenceMetadata>> sequences_;
  SchedulerOutput plan_;
  StepId step_;
};

TEST_F(SchedulerPrefixTest, CachedBlocksThatNobodyHasCountAsFreeOnce) {
  Start(4);
  Leave(3 * 64);
  EXPECT_EQ(kv_->num_free(), 4u);
  // Takes the three idle ones, and the fourth.
  const SequenceMetadata* all = Add(3 * 64 + 1);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
  EXPECT_EQ(all->computed_rows, 3 * 64u);
  EXPECT_EQ(kv_->num_free(), 0u);
  EXPECT_EQ(scheduler_->prefix_counts().hit_tokens, 3 * 64u);
}

TEST_F(SchedulerPrefixTest, SharedBlocksNeedNoRoom) {
  Start(6);
  Leave(3 * 64);
  Add(3 * 64 + 1);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
  // One of its own, one for the other one to grow.
  Add(3 * 64 + 2);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{3});
  EXPECT_EQ(kv_->num_free(), 1u);
  // One of its own, and none for the two others.
  Add(3 * 64 + 3);
  EXPECT_TRUE(Admit().empty());
}

TEST_F(SchedulerPrefixTest, AdmissionEvictsOthersNotWhatItTakes) {
  Start(4);
  Leave(2 * 64, 7);
  Leave(2 * 64, 8);
  EXPECT_EQ(kv_->prefix_cache().num_blocks(), 4u);
  const SequenceMetadata* one = Add(2 * 64 + 1, 7);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{3});
  EXPECT_EQ(one->computed_rows, 2 * 64u);
  EXPECT_EQ(kv_->prefix_cache().num_evicted(), 1u);
  EXPECT_EQ(kv_->num_free(), 1u);
}

TEST_F(SchedulerPrefixTest, AYoungerOneAwaitsTheBlocksThatAnOlderOneComputes) {
  Start(20);
  Add(3 * 64 + 10);
  Add(3 * 64 + 20);
  Add(3 * 64, 5);
  EXPECT_EQ(Admit(), (std::vector<uint64_t>{1, 3}));
  Step();
  Step();
  EXPECT_TRUE(Admit().empty());
  Step();
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
  EXPECT_EQ(sequences_[1]->computed_rows, 3 * 64u);
}

TEST_F(SchedulerPrefixTest, ASampleSharesWhatIsLaunchedBeforeItIsCached) {
  Start(20);
  Add(64 + 10, 1, SequenceId(1));
  Add(64 + 10, 1, SequenceId(1));
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  scheduler_->Schedule(++step_, &plan_);
  EXPECT_EQ(sequences_[0]->computed_rows, 0u);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
  EXPECT_EQ(sequences_[1]->kv.blocks()[0], sequences_[0]->kv.blocks()[0]);
}

TEST_F(SchedulerPrefixTest, WhoAwaitsABlockKeepsItsRoom) {
  Start(8);
  Add(2 * 64 + 1);
  Add(2 * 64 + 2);
  Add(64, 5);  // No block is left, with one for each of both to grow.
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
}

TEST_F(SchedulerPrefixTest, AnOlderOneAwaitsNobody) {
  Start(20);
  Add(3 * 64 + 10);
  Add(3 * 64 + 20);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  scheduler_->Preempt(sequences_[0].get());
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  Finish(sequences_[0].get());
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
}

TEST_F(SchedulerPrefixTest, APreemptedOneGoesOnBehindItsCachedBlocks) {
  Start(20);
  SequenceMetadata* sequence = Add(2 * 64 + 10);
  Admit();
  while (sequence->num_tokens() < 3 * 64 + 20) Step();
  scheduler_->Preempt(sequence);
  EXPECT_EQ(kv_->num_free(), 20u);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  EXPECT_EQ(sequence->computed_rows, 3 * 64u);
}

}  // namespace
}  // namespace baton
