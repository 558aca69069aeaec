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
        range->state_ == KvRangeState::kReserved ||
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

void KvCacheManager::Share(const KvBlockRange& from, uint32_t num_blocks,
                           KvBlockRange* range) {
  CHECK(from.state_ == KvRangeState::kReserved ||  // Shared itself.
        from.state_ == KvRangeState::kFilling ||
        from.state_ == KvRangeState::kOwned);
  CHECK(range->state_ == KvRangeState::kFree);
  CHECK_LE(num_blocks, NumBlocks(from));
  const auto shared = std::span(from.blocks_).first(num_blocks);
  allocator_.Share(shared);
  range->blocks_.assign(shared.begin(), shared.end());
  range->state_ = KvRangeState::kReserved;
  CountIn(range->state_) += num_blocks;
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
  LeaveToOthers(range);
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

// Steps in flight may still read these for this range, but whoever gives one up
// last does so after this: it waits for them, too.
void KvCacheManager::LeaveToOthers(KvBlockRange* range) {
  CountIn(range->state_) -= static_cast<uint32_t>(
      std::erase_if(range->blocks_, [this](const BlockId& block) {
        if (allocator_.references(block) == 1) return false;
        allocator_.Free({&block, 1});
        return true;
      }));
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
  std::array<uint32_t, kNumKvRangeStates> counted = {};
  std::vector<uint32_t> holders(num_blocks(), 0);
  for (const KvBlockRange* range : ranges) {
    counted[static_cast<int>(range->state())] += NumBlocks(*range);
    for (BlockId block : range->blocks()) ++holders[block.value()];
  }
  counted[static_cast<int>(KvRangeState::kFree)] = num_free();
  for (uint32_t i = 0; i < num_blocks(); ++i) {
    const uint32_t references = allocator_.references(BlockId(i));
    const bool is_quarantined = holders[i] == 0 && references > 0;
    CHECK_EQ(references, is_quarantined ? 1 : holders[i]) << "block " << i;
    counted[static_cast<int>(KvRangeState::kQuarantined)] += is_quarantined;
  }
  for (int state = 0; state < kNumKvRangeStates; ++state) {
    CHECK_EQ(counted[state], blocks_in_[state]) << "state " << state;
  }
}

}  // namespace baton
