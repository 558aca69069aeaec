#include "engine/kv_cache_manager.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace baton {

namespace {

uint32_t NumBlocks(const KvBlockRange& range) {
  return static_cast<uint32_t>(range.blocks().size());
}

// The one behind the position.
PrefixBlock BlockAt(const PrefixPosition& position,
                    std::span<const uint32_t> tokens,
                    const PrefixChain& chain) {
  const size_t first = size_t{position.num_blocks} * CacheSpec::kBlockTokens;
  return {.key = chain.key(position.num_blocks),
          .tokens = tokens.subspan(first, CacheSpec::kBlockTokens),
          .salt = chain.salt()};
}

}  // namespace

KvCacheManager::KvCacheManager(const CacheSpec& spec, KvPool* pool)
    : cache_(pool->num_blocks()),
      allocator_(pool, &cache_),
      holders_(pool->num_blocks(), 0) {
  CHECK_EQ(spec.block_bytes(), pool->block_bytes());
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
    Hold(std::span(range->blocks_).subspan(held));
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
  range->blocks_.assign(shared.begin(), shared.end());
  TakeShared(range);
}

void KvCacheManager::FindPrefix(std::span<const uint32_t> tokens,
                                uint32_t max_blocks, PrefixChain* chain) const {
  chain->Extend(tokens.first(size_t{max_blocks} * CacheSpec::kBlockTokens));
  PrefixPosition position = chain->position;
  if (!cache_.Has(position)) position = {};
  while (position.num_blocks > max_blocks) position = cache_.Before(position);
  while (position.num_blocks < max_blocks &&
         cache_.Advance(BlockAt(position, tokens, *chain), &position)) {
  }
  chain->position = position;
}

uint32_t KvCacheManager::NumIdle(const PrefixPosition& position) const {
  uint32_t count = 0;
  for (PrefixPosition at = position; at.num_blocks > 0;
       at = cache_.Before(at)) {
    count += cache_.IsIdle(at.block);
  }
  return count;
}

void KvCacheManager::TakePrefix(const PrefixPosition& position,
                                KvBlockRange* range) {
  CHECK(range->state_ == KvRangeState::kFree);
  if (position.num_blocks == 0) return;
  range->blocks_.resize(position.num_blocks);
  for (PrefixPosition at = position; at.num_blocks > 0;
       at = cache_.Before(at)) {
    range->blocks_[at.num_blocks - 1] = at.block;
  }
  TakeShared(range);
}

void KvCacheManager::CachePrefix(const KvBlockRange& range,
                                 std::span<const uint32_t> tokens,
                                 PrefixChain* chain) {
  const auto whole =
      static_cast<uint32_t>(tokens.size() / CacheSpec::kBlockTokens);
  PrefixPosition position = chain->position;
  if (position.num_blocks >= whole) return;
  chain->Extend(tokens);
  // What stood there for these tokens was another sequence's, and is evicted.
  if (!cache_.Has(position)) position = {};
  while (position.num_blocks < whole) {
    const PrefixBlock next = BlockAt(position, tokens, *chain);
    if (!cache_.Advance(next, &position) &&
        !cache_.Insert(next, range.blocks()[position.num_blocks], &position)) {
      break;
    }
  }
  chain->position = position;
}

// The range has its blocks now, and a reference to each.
void KvCacheManager::TakeShared(KvBlockRange* range) {
  allocator_.Share(range->blocks_);
  Hold(range->blocks_);
  range->state_ = KvRangeState::kReserved;
  CountIn(range->state_) += NumBlocks(*range);
}

void KvCacheManager::Hold(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    num_held_ += holders_[block.value()]++ == 0;
  }
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

// Steps in flight may still read these for this range, but whichever of the
// ranges that have one gives it up last does so after this: it waits for them,
// too.
void KvCacheManager::LeaveToOthers(KvBlockRange* range) {
  CountIn(range->state_) -= static_cast<uint32_t>(
      std::erase_if(range->blocks_, [this](const BlockId& block) {
        if (--holders_[block.value()] == 0) {
          --num_held_;
          return false;
        }
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
  if (to != KvRangeState::kFree) CountIn(to) += NumBlocks(*range);
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
  for (uint32_t i = 0; i < num_blocks(); ++i) {
    const uint32_t references = allocator_.references(BlockId(i));
    CHECK_EQ(holders_[i], holders[i]) << "block " << i;
    CHECK_GE(references, holders[i]) << "block " << i;
    counted[static_cast<int>(KvRangeState::kQuarantined)] +=
        references - holders[i];
  }
  const auto not_held = std::count(holders.begin(), holders.end(), 0u);
  CHECK_EQ(num_held_, num_blocks() - not_held);
  for (int state = 0; state < kNumKvRangeStates; ++state) {
    CHECK_EQ(counted[state], blocks_in_[state]) << "state " << state;
  }
}

}  // namespace baton
