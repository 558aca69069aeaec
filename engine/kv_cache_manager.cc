#include "engine/kv_cache_manager.h"

#include <utility>

#include "base/logging.h"

namespace baton {

namespace {

uint32_t NumBlocks(const KvBlockRange& range) {
  return static_cast<uint32_t>(range.blocks().size());
}

}  // namespace

KvCacheManager::KvCacheManager(const CacheSpec& spec, KvPool* pool)
    : allocator_(pool) {
  CHECK_EQ(spec.block_bytes(), pool->block_bytes());
  CountIn(KvRangeState::kFree) = pool->num_blocks();
}

bool KvCacheManager::Reserve(KvBlockRange* range, uint32_t tokens) {
  CHECK(range->state_ == KvRangeState::kFree ||
        range->state_ == KvRangeState::kFilling ||
        range->state_ == KvRangeState::kOwned);
  const uint32_t wanted = CacheSpec::BlocksFor(tokens);
  const uint32_t held = NumBlocks(*range);
  if (wanted > held) {
    if (!allocator_.Allocate(wanted - held, &range->blocks_)) return false;
    CountIn(KvRangeState::kFree) -= wanted - held;
    CountIn(range->state_) += wanted - held;
  }
  if (range->state_ == KvRangeState::kFree) {
    Move(range, KvRangeState::kReserved);
  }
  return true;
}

void KvCacheManager::Prepare(KvBlockRange* range, uint32_t tokens) {
  range->blocks_.reserve(CacheSpec::BlocksFor(tokens));
}

void KvCacheManager::Transition(KvBlockRange* range, KvRangeState to) {
  CHECK(to != KvRangeState::kFree && to != KvRangeState::kQuarantined);
  Move(range, to);
}

void KvCacheManager::Release(KvBlockRange* range) {
  if (range->state_ == KvRangeState::kFree) return;
  if (newest_done_ == newest_launched_) {
    Free(range);
    return;
  }
  Move(range, KvRangeState::kQuarantined);
  quarantine_.Add(newest_launched_, std::exchange(*range, KvBlockRange()));
}

void KvCacheManager::StepDone(StepId step) {
  newest_done_ = step;
  quarantine_.Collect(step, [this](KvBlockRange range) { Free(&range); });
}

void KvCacheManager::Free(KvBlockRange* range) {
  Move(range, KvRangeState::kFree);
  allocator_.Free(range->blocks_);
  range->blocks_.clear();
}

void KvCacheManager::Move(KvBlockRange* range, KvRangeState to) {
  CHECK(IsLegalTransition(range->state_, to))
      << "from " << static_cast<int>(range->state_) << " to "
      << static_cast<int>(to);
  CountIn(range->state_) -= NumBlocks(*range);
  CountIn(to) += NumBlocks(*range);
  range->state_ = to;
}

void KvCacheManager::CheckInvariants(
    std::span<const KvBlockRange* const> ranges) const {
  allocator_.CheckInvariants();
  CHECK_EQ(num_in(KvRangeState::kFree), allocator_.num_free());
  std::array<uint32_t, kNumKvRangeStates> counted = {};
  std::vector<bool> held(num_blocks(), false);
  for (const KvBlockRange* range : ranges) {
    counted[static_cast<int>(range->state())] += NumBlocks(*range);
    for (BlockId block : range->blocks()) {
      CHECK(allocator_.allocated(block)) << "block " << block;
      CHECK(!held[block.value()]) << "block " << block << " is held twice";
      held[block.value()] = true;
    }
  }
  // With the quarantine, every allocated block is accounted for.
  counted[static_cast<int>(KvRangeState::kFree)] = num_free();
  counted[static_cast<int>(KvRangeState::kQuarantined)] =
      num_in(KvRangeState::kQuarantined);
  uint32_t total = 0;
  for (int state = 0; state < kNumKvRangeStates; ++state) {
    CHECK_EQ(counted[state], blocks_in_[state]) << "state " << state;
    total += counted[state];
  }
  CHECK_EQ(total, num_blocks());
}

}  // namespace baton
