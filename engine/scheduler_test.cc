#include "engine/scheduler.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

// (id, first position, rows) of each planned sequence.
using Rows = std::vector<std::array<uint64_t, 3>>;

// A scheduler, its pool, and commits at once: every row planned is computed,
// every sample is a token.
class SchedulerTest : public testing::TestWithParam<int> {
 protected:
  void Start(const EngineOptions& options, uint32_t num_blocks) {
    pool_ = std::make_unique<HeapKvPool>(num_blocks, 64);
    const CacheSpec spec = {.groups = {{"rows", 1}}};
    kv_ = std::make_unique<KvCacheManager>(spec, pool_->get());
    scheduler_ = std::make_unique<Scheduler>(options, kv_.get());
  }

  void TearDown() override {
    for (auto& sequence : sequences_) {
      if (sequence->phase() == SequencePhase::kFinished) continue;
      Finish(sequence.get());
    }
  }

  SequenceMetadata* Add(uint32_t num_tokens,
                        RequestMode mode = RequestMode::kGenerate) {
    GenerationRequest request;
    request.mode = mode;
    request.token_ids.assign(num_tokens, 1);
    request.original_prompt_tokens = num_tokens;
    return Add(std::move(request), std::nullopt);
  }

  SequenceMetadata* Add(GenerationRequest request,
                        std::optional<SequenceId> first_sample) {
    sequences_.push_back(std::make_unique<SequenceMetadata>(
        std::move(request), nullptr, absl::UnixEpoch()));
    SequenceMetadata* sequence = sequences_.back().get();
    sequence->id = SequenceId(sequences_.size());
    sequence->first_sample = first_sample;
    sequence->max_total_tokens = 10000;
    scheduler_->Enqueue(sequence);
    return sequence;
  }

  void AddSamples(uint32_t num_samples, uint32_t num_tokens) {
    const SequenceId first(sequences_.size() + 1);
    for (uint32_t i = 0; i < num_samples; ++i) {
      GenerationRequest request;
      request.token_ids.assign(num_tokens, 1);
      request.original_prompt_tokens = num_tokens;
      Add(std::move(request), first);
    }
  }

  std::vector<uint64_t> Admit() {
    std::vector<uint64_t> ids;
    for (SequenceMetadata* sequence : scheduler_->Admit()) {
      ids.push_back(sequence->id.value());
      if (sequence->exports()) {
        kv_->Transition(&sequence->kv, KvRangeState::kExported);
      }
    }
    return ids;
  }

  Rows Step() {
    scheduler_->Schedule(++step_, &plan_);
    scheduler_->CheckInvariants();
    Rows rows;
    for (const ScheduledRows& planned : plan_.rows) {
      SequenceMetadata* sequence = planned.sequence;
      EXPECT_EQ(planned.generation, sequence->generation);
      const uint32_t first = planned.source == RowSource::kHost
                                 ? planned.first_position
                                 : sequence->computed_rows;
      EXPECT_EQ(first, sequence->computed_rows);
      rows.push_back({sequence->id.value(), first, planned.num_rows});
      sequence->computed_rows += planned.num_rows;
      sequence->inflight_rows -= planned.num_rows;
    }
    for (const ScheduledRows& planned : plan_.rows) {
      if (planned.draws) Sampled(planned.sequence);
    }
    return rows;
  }

  void Sampled(SequenceMetadata* sequence) {
    if (sequence->exports()) {
      scheduler_->Remove(sequence);
      sequence->SetPhase(SequencePhase::kExported);
    } else if (sequence->phase() == SequencePhase::kPrefilling) {
      kv_->Transition(&sequence->kv, KvRangeState::kOwned);
      sequence->SetPhase(SequencePhase::kDecoding);
    }
    sequence->tokens.push_back(1);
    if (sequence->phase() != SequencePhase::kDecoding) return;
    --sequence->inflight_draws;
    --sequence->total_inflight_tokens;
  }

  void Finish(SequenceMetadata* sequence) {
    if (sequence->phase() != SequencePhase::kExported) {
      scheduler_->Remove(sequence);
    }
    kv_->Release(&sequence->kv);
    sequence->SetPhase(SequencePhase::kFinished);
  }

  std::unique_ptr<HeapKvPool> pool_;
  std::unique_ptr<KvCacheManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<SequenceMetadata>> sequences_;
  SchedulerOutput plan_;
  StepId step_;
};

TEST_F(SchedulerTest, APromptIsComputedInChunksAndSamplesOnce) {
  Start({.max_batched_tokens = 10, .max_chunk_tokens = 4}, 8);
  Add(9);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  EXPECT_EQ(Step(), (Rows{{1, 0, 4}}));
  EXPECT_FALSE(plan_.rows[0].draws);
  EXPECT_EQ(Step(), (Rows{{1, 4, 4}}));
  EXPECT_EQ(Step(), (Rows{{1, 8, 1}}));
  EXPECT_TRUE(plan_.rows[0].draws);
  EXPECT_EQ(Step(), (Rows{{1, 9, 1}}));
  EXPECT_EQ(plan_.type, StepType::kDecode);
}

TEST_F(SchedulerTest, TheTokenBudgetIsSharedOldestFirst) {
  Start({.max_batched_tokens = 10, .max_chunk_tokens = 6}, 8);
  Add(7), Add(3), Add(5);
  Admit();
  EXPECT_EQ(Step(), (Rows{{1, 0, 6}, {2, 0, 3}, {3, 0, 1}}));
  EXPECT_FALSE(plan_.rows[0].draws);
  EXPECT_TRUE(plan_.rows[1].draws);
  EXPECT_FALSE(plan_.rows[2].draws);
}

TEST_F(SchedulerTest, AStepsLogitsRowsBoundTheChunksOfScoredPrompts) {
  Start({.max_running_requests = 4}, 8);
  Add(20)->next_prompt_logprob = 11;
  Add(5);
  Admit();
  const auto logits_rows = [this] {
    uint32_t count = 0;
    for (const ScheduledRows& rows : plan_.rows) {
      count += rows.num_logits_rows();
    }
    return count;
  };
  // The second has no room left to draw.
  EXPECT_EQ(Step(), (Rows{{1, 0, 14}, {2, 0, 4}}));
  EXPECT_EQ(plan_.rows[0].first_scored, 10u);
  EXPECT_EQ(plan_.rows[0].num_scored, 4u);
  EXPECT_EQ(logits_rows(), 4u);
  EXPECT_EQ(Step(), (Rows{{1, 14, 4}}));
  EXPECT_EQ(plan_.rows[0].num_scored, 4u);
  EXPECT_EQ(Step(), (Rows{{1, 18, 2}, {2, 4, 1}}));
  EXPECT_EQ(plan_.rows[0].first_scored, 18u);
  EXPECT_EQ(plan_.rows[0].num_scored, 1u);
  EXPECT_EQ(logits_rows(), 3u);
}

TEST_F(SchedulerTest, LongPromptsAndDecodesTakeTurns) {
  Start({.max_batched_tokens = 4,
         .max_chunk_tokens = 4,
         .decode_steps_per_prefill = 2},
        8);
  Add(1);
  Admit();
  Step();
  Add(12);
  Admit();
  std::vector<StepType> types;
  for (int i = 0; i < 9; ++i) {
    Step();
    types.push_back(plan_.type);
  }
  using enum StepType;
  EXPECT_EQ(types,
            (std::vector<StepType>{kDecode, kDecode, kPrefill, kDecode, kDecode,
                                   kPrefill, kDecode, kDecode, kPrefill}));
}

TEST_F(SchedulerTest, TheQueueIsServedInOrderEvenIfALaterOneWouldFit) {
  Start({}, 4);
  Add(2 * 64), Add(3 * 64), Add(1);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  Finish(sequences_[0].get());
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
}

TEST_F(SchedulerTest, OnlySoManyRunAtATime) {
  Start({.max_running_requests = 2}, 16);
  Add(1), Add(1), Add(1);
  EXPECT_EQ(Admit(), (std::vector<uint64_t>{1, 2}));
  Finish(sequences_[0].get());
  EXPECT_EQ(Admit(), std::vector<uint64_t>{3});
}

TEST_F(SchedulerTest, PreemptsTheYoungestWhenBlocksRunOut) {
  Start({}, 4);
  Add(63), Add(63), Add(63);
  Admit();
  ASSERT_EQ(scheduler_->running().size(), 2u);  // One block to spare for each.
  Finish(sequences_[0].get());
  Admit();
  Step();              // Prefill of 2 and 3: 64 tokens each now.
  Step();              // Row 63 fills the block.
  Rows rows = Step();  // Both take a second block: none is left.
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_EQ(kv_->num_free(), 0u);
  for (int i = 0; i < 64; ++i) rows = Step();
  EXPECT_EQ(plan_.preemptions, 1u);
  EXPECT_EQ(rows, (Rows{{2, 128, 1}}));
  EXPECT_EQ(sequences_[2]->phase(), SequencePhase::kWaiting);
  EXPECT_EQ(sequences_[2]->launched_rows(), 0u);
}

TEST_F(SchedulerTest, TheYoungestSitsOutRatherThanPreemptAnOlderOne) {
  Start({}, 3);
  Add(1, RequestMode::kPrefill);
  Add(63);
  Admit();
  Step();  // Prefill of both; the export is complete.
  Step();
  Step();
  Add(1);  // Takes no block: one to spare is wanted.
  EXPECT_TRUE(Admit().empty());
  for (int i = 0; i < 63; ++i) Step();
  ASSERT_EQ(sequences_[1]->computed_rows, 128u);
  EXPECT_TRUE(Step().empty());  // The export keeps its block, alone or not.
  EXPECT_EQ(sequences_[0]->phase(), SequencePhase::kExported);
  Finish(sequences_[0].get());
  EXPECT_EQ(Step(), (Rows{{2, 128, 1}}));
}

TEST_F(SchedulerTest, ExportsAreNeverPreempted) {
  Start({.max_batched_tokens = 8, .max_chunk_tokens = 8}, 4);
  Add(64);
  Admit();
  for (int i = 0; i < 8; ++i) Step();
  Add(100, RequestMode::kPrefill);
  ASSERT_EQ(Admit().size(), 1u);
  EXPECT_FALSE(Scheduler::CanPreempt(*sequences_[1]));
  for (int i = 0; i < 200; ++i) Step();
  EXPECT_EQ(sequences_[1]->phase(), SequencePhase::kExported);
  EXPECT_EQ(sequences_[0]->computed_rows, 128u);  // It waits for the lease.
}

// The same policy over counts alone.
class NaiveScheduler {
 public:
  struct Item {
    uint64_t tokens = 0, rows = 0, blocks = 0;
    bool running = false, exports = false;
  };

  NaiveScheduler(const EngineOptions& options, uint64_t blocks)
      : options_(options), free_(blocks) {}

  std::map<uint64_t, Item> items;

  std::vector<uint64_t> Admit() {
    std::vector<uint64_t> admitted;
    for (auto& [id, item] : items) {
      if (item.running) continue;
      uint64_t running = 0, growing = 0;
      for (auto& [other_id, other] : items) {
        running += other.running;
        growing += other.running && !other.exports;
      }
      const uint64_t blocks = (item.tokens + 63) / 64;
      if (running >= options_.max_running_requests) break;
      if (blocks + growing > free_) break;
      free_ -= blocks;
      item.blocks = blocks;
      item.running = true;
      admitted.push_back(id);
    }
    return admitted;
  }

  Rows Step() {
    Rows rows;
    const bool prefill_first = decodes_ >= options_.decode_steps_per_prefill;
    if (prefill_first) rows = Prefill();
    bool prefill = !rows.empty();
    if (rows.empty()) rows = Decode();
    if (rows.empty() && !prefill_first) {
      rows = Prefill();
      prefill = true;
    }
    if (!rows.empty()) decodes_ = prefill ? 0 : decodes_ + 1;
    for (const auto& [id, first, count] : rows) {
      Item& item = items[id];
      item.rows += count;
      if (item.rows < item.tokens) continue;
      ++item.tokens;
      if (item.exports) Drop(id);
    }
    return rows;
  }

  void Drop(uint64_t id) {
    free_ += items[id].blocks;
    items.erase(id);
  }
  void Preempt(uint64_t id) {
    Item& item = items[id];
    free_ += item.blocks;
    item.rows = item.blocks = 0;
    item.running = false;
    decoding_.erase(id);
  }
  uint64_t num_free() const { return free_; }

 private:
  bool Decodes(uint64_t id) { return decoding_.contains(id); }

  Rows Prefill() {
    Rows rows;
    uint64_t room = options_.max_batched_tokens;
    for (auto& [id, item] : items) {
      if (!item.running || Decodes(id) || room == 0) continue;
      const uint64_t count = std::min<uint64_t>(
          {item.tokens - item.rows, options_.max_chunk_tokens, room});
      rows.push_back({id, item.rows, count});
      room -= count;
      if (item.rows + count == item.tokens && !item.exports) {
        decoding_.insert(id);
      }
    }
    return rows;
  }

  Rows Decode() {
    Rows rows;
    std::vector<uint64_t> ids;
    for (auto& [id, item] : items) ids.push_back(id);
    for (uint64_t id : ids) {
      Item& item = items[id];
      if (!item.running || !Decodes(id)) continue;
      const uint64_t wanted = item.rows / 64 + 1;
      while (wanted > item.blocks + free_ && PreemptBehind(id)) {
      }
      if (wanted > item.blocks + free_) continue;
      free_ -= wanted - item.blocks;
      item.blocks = wanted;
      rows.push_back({id, item.rows, 1});
    }
    return rows;
  }

  bool PreemptBehind(uint64_t id) {
    for (auto it = items.rbegin(); it->first > id; ++it) {
      if (!it->second.running || it->second.exports) continue;
      Preempt(it->first);
      return true;
    }
    return false;
  }

  const EngineOptions options_;
  uint64_t free_;
  uint64_t decodes_ = 0;
  std::set<uint64_t> decoding_;
};

TEST_F(SchedulerTest, SamplesWaitForThePromptAndShareItsWholeBlocks) {
  Start({.max_batched_tokens = 100, .max_chunk_tokens = 100}, 20);
  AddSamples(3, 150);
  EXPECT_EQ(scheduler_->waiting_tokens(), 150u + 2 * 22);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});
  EXPECT_EQ(Step(), (Rows{{1, 0, 100}}));
  EXPECT_EQ(Admit(), std::vector<uint64_t>{});
  EXPECT_EQ(kv_->num_free(), 17u);
  EXPECT_EQ(Step(), (Rows{{1, 100, 50}}));
  EXPECT_EQ(Admit(), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(kv_->num_free(), 15u);
  EXPECT_EQ(scheduler_->waiting_tokens(), 0u);
  EXPECT_EQ(Step(), (Rows{{1, 150, 1}}));
  EXPECT_EQ(Step(), (Rows{{2, 128, 22}, {3, 128, 22}}));
  EXPECT_EQ(Step(), (Rows{{1, 151, 1}, {2, 150, 1}, {3, 150, 1}}));
}

TEST_F(SchedulerTest, APromptOfOneBlockIsSharedByNobody) {
  Start({}, 20);
  AddSamples(2, 64);
  EXPECT_EQ(Admit(), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Step(), (Rows{{1, 0, 64}, {2, 0, 64}}));
}

TEST_F(SchedulerTest, WhoWaitsForAPromptKeepsItsPlace) {
  Start({.max_running_requests = 3, .max_chunk_tokens = 100}, 20);
  AddSamples(2, 150);
  Add(10);
  Add(10);
  EXPECT_EQ(Admit(), (std::vector<uint64_t>{1, 3}));
  Step();
  EXPECT_EQ(Admit(), std::vector<uint64_t>{});
  Step();
  Step();
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
}

TEST_F(SchedulerTest, AnotherSampleComputesThePromptWhenTheFirstIsGone) {
  Start({.max_batched_tokens = 100, .max_chunk_tokens = 100}, 20);
  AddSamples(3, 150);
  Admit();
  Step();
  Finish(sequences_[0].get());
  EXPECT_EQ(Admit(), std::vector<uint64_t>{2});
  EXPECT_EQ(Step(), (Rows{{2, 0, 100}}));
  EXPECT_EQ(Step(), (Rows{{2, 100, 50}}));
  EXPECT_EQ(Admit(), std::vector<uint64_t>{3});
}

TEST_F(SchedulerTest, ThePromptOutlivesWhoComputedIt) {
  Start({.max_batched_tokens = 200, .max_chunk_tokens = 200}, 20);
  AddSamples(2, 150);
  Admit();
  Step();
  Admit();
  const BlockId block = sequences_[0]->kv.blocks()[0];
  scheduler_->Preempt(sequences_[0].get());
  EXPECT_EQ(sequences_[1]->kv.blocks()[0], block);
  EXPECT_EQ(Admit(), std::vector<uint64_t>{1});  // It takes it back.
  EXPECT_EQ(sequences_[0]->kv.blocks()[0], block);
  EXPECT_EQ(Step(), (Rows{{1, 128, 23}, {2, 128, 22}}));
}

INSTANTIATE_TEST_SUITE_P(Rounds, SchedulerTest, testing::Range(0, 20));

TEST_P(SchedulerTest, AgreesWithANaiveModelOverRandomLives) {
  const uint64_t seed = std::random_device()() + GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  EngineOptions options;
  options.max_running_requests = 1 + random() % 8;
  options.max_chunk_tokens = 1 + random() % 100;
  options.max_batched_tokens = options.max_chunk_tokens + random() % 100;
  options.decode_steps_per_prefill = random() % 4;
  const uint32_t blocks = 6 + random() % 10;
  Start(options, blocks);
  NaiveScheduler naive(options, blocks);
  for (int i = 0; i < 1000; ++i) {
    if (random() % 8 == 0 && naive.items.size() < 12) {
      const auto mode =
          random() % 3 == 0 ? RequestMode::kPrefill : RequestMode::kGenerate;
      const uint32_t tokens = 1 + random() % (3 * 64);
      naive.items[Add(tokens, mode)->id.value()] = {
          .tokens = tokens, .exports = mode == RequestMode::kPrefill};
    }
    ASSERT_EQ(Admit(), naive.Admit());
    ASSERT_EQ(Step(), naive.Step()) << "step " << i;
    // The naive model drops exports at their end; others end by length.
    for (auto& sequence : sequences_) {
      const uint64_t id = sequence->id.value();
      if (sequence->phase() == SequencePhase::kExported) {
        Finish(sequence.get());
      } else if (naive.items.contains(id) && sequence->num_tokens() > 5 * 64) {
        Finish(sequence.get());
        naive.Drop(id);
      } else if (random() % 200 == 0 && Scheduler::CanPreempt(*sequence)) {
        scheduler_->Preempt(sequence.get());
        naive.Preempt(id);
      }
    }
    ASSERT_EQ(kv_->num_free(), naive.num_free());
  }
}

}  // namespace
}  // namespace baton
