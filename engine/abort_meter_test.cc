#include "engine/abort_meter.h"

#include <vector>

#include "base/logging.h"
#include "engine/cache_spec.h"
#include "engine/kv_cache_manager.h"
#include "gtest/gtest.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

class AbortMeterTest : public testing::Test {
 protected:
  AbortMeterTest() { CHECK(kv_.Reserve(&sequence_.kv, 10)); }
  ~AbortMeterTest() override { kv_.Release(&sequence_.kv); }

  const CacheSpec spec_ = {.groups = {{.name = "k", .bytes_per_token = 8}}};
  HeapKvPool pool_{4, spec_.block_bytes()};
  KvCacheManager kv_{spec_, pool_.get()};
  SequenceMetadata sequence_{GenerationRequest(), nullptr, At(0)};
  std::vector<AbortStats> told_;
  AbortMeter meter_{
      [this](const AbortStats& stats) { told_.push_back(stats); }};
};

TEST_F(AbortMeterTest, CountsTimeAndStepsFromTheAbortsArrival) {
  meter_.OnLaunch(StepId(7), At(1));
  const UnwantedSince since = meter_.Stamp(At(2));
  meter_.OnLaunch(StepId(8), At(3));  // Before the engine heard of it.
  sequence_.MarkUnwanted(since);
  meter_.OnLaunch(StepId(9), At(4));
  meter_.OnFree(sequence_, At(5));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].time, absl::Milliseconds(3));
  EXPECT_EQ(told_[0].steps, 2u);
}

TEST_F(AbortMeterTest, AStepLaunchedBehindTheDeadlineIsCounted) {
  meter_.OnLaunch(StepId(7), At(1));
  sequence_.MarkUnwanted(meter_.StampOf(At(2)));
  meter_.OnFree(sequence_, At(3));
  sequence_.unwanted.reset();
  meter_.OnLaunch(StepId(8), At(3));
  sequence_.MarkUnwanted(meter_.StampOf(At(2)));
  meter_.OnFree(sequence_, At(4));
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_[0].steps, 0u);
  EXPECT_EQ(told_[1].steps, 1u);
  EXPECT_EQ(told_[1].time, absl::Milliseconds(2));
}

TEST_F(AbortMeterTest, TheFirstWordCounts) {
  sequence_.MarkUnwanted(meter_.Stamp(At(2)));
  sequence_.MarkUnwanted(meter_.Stamp(At(4)));
  meter_.OnFree(sequence_, At(5));
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].time, absl::Milliseconds(3));
}

TEST_F(AbortMeterTest, WhatEndedByItselfOrHadNoBlocksIsNoAbort) {
  meter_.OnFree(sequence_, At(5));
  kv_.Release(&sequence_.kv);
  sequence_.MarkUnwanted(meter_.Stamp(At(6)));
  meter_.OnFree(sequence_, At(7));
  EXPECT_TRUE(told_.empty());
}

}  // namespace
}  // namespace baton
