// Gives KV blocks to sequences and takes them back when nothing touches them,
// and finds those that hold a prefix already.
#ifndef BATON_ENGINE_KV_CACHE_MANAGER_H_
#define BATON_ENGINE_KV_CACHE_MANAGER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/kv_pool.h"
#include "engine/block_allocator.h"
#include "engine/cache_spec.h"
#include "engine/deferred_release.h"
#include "engine/ids.h"
#include "engine/kv_block_range.h"
#include "engine/prefix_cache.h"
#include "engine/prefix_chain.h"

namespace baton {

// Owned by the engine. The one writer of KvBlockRange.
class KvCacheManager {
 public:
  // Borrows the pool. REQUIRES: its blocks are of the spec's size.
  KvCacheManager(const CacheSpec& spec, KvPool* pool);

  // Grows the range to hold `tokens` rows; false, and nothing changed, when too
  // few blocks are free. REQUIRES: the range is kFree, or, to grow, kReserved,
  // kFilling or kOwned.
  bool Reserve(KvBlockRange* range, uint32_t tokens);
  // The range, kFree before, is kReserved and begins with the first blocks of
  // `from`. REQUIRES: every row of these is in a launched step; no transfer has
  // them.
  void Share(const KvBlockRange& from, uint32_t num_blocks,
             KvBlockRange* range);

  // Moves the chain's position to the end of the longest cached prefix of at
  // most so many blocks of `tokens`.
  void FindPrefix(std::span<const uint32_t> tokens, uint32_t max_blocks,
                  PrefixChain* chain) const;
  // Of the position's blocks those that count as free.
  uint32_t NumIdle(const PrefixPosition& position) const;
  // The range, kFree before, begins with the position's blocks; without any it
  // stays kFree. REQUIRES: the cache has it.
  void TakePrefix(const PrefixPosition& position, KvBlockRange* range);
  // Those of the range's first blocks that the cache lacks are now found there.
  // REQUIRES: committed steps, or an import, wrote all rows of `tokens`.
  void CachePrefix(const KvBlockRange& range, std::span<const uint32_t> tokens,
                   PrefixChain* chain);
  const PrefixCache& prefix_cache() const { return cache_; }

  // Growing to so many rows will not allocate memory.
  void Prepare(KvBlockRange* range, uint32_t tokens);
  // REQUIRES: IsLegalTransition, and not to kQuarantined or kFree.
  void Transition(KvBlockRange* range, KvRangeState to);
  // Gives the blocks up; the range is kFree for its sequence. Those that no
  // other range has are free at once when no step is in flight, else after the
  // newest one.
  void Release(KvBlockRange* range);

  void StepLaunched(StepId step) { newest_launched_ = step; }
  // Steps end in order.
  void StepDone(StepId step);

  uint32_t num_blocks() const { return allocator_.num_blocks(); }
  // Idle ones of the cache included: whoever needs blocks gets them.
  uint32_t num_free() const { return allocator_.num_free(); }
  // Blocks of live ranges, each once.
  uint32_t num_held() const { return num_held_; }
  // Given up, and free soon if nobody takes them from the cache, each once.
  uint32_t num_deferred() const {
    return num_blocks() - num_free() - num_held_;
  }
  // Blocks of all ranges in a state, a shared one with each range that has it.
  uint32_t num_in(KvRangeState state) const {
    return blocks_in_[static_cast<int>(state)];
  }

  // Dies unless every allocated block has a reference of each live range that
  // has it, and of each time that it is in quarantine. `ranges`: all of them.
  void CheckInvariants(std::span<const KvBlockRange* const> ranges) const;

 private:
  void TakeShared(KvBlockRange* range);
  void Hold(std::span<const BlockId> blocks);
  void LeaveToOthers(KvBlockRange* range);
  void Free(KvBlockRange* range);
  void Move(KvBlockRange* range, KvRangeState to);
  uint32_t& CountIn(KvRangeState state) {
    return blocks_in_[static_cast<int>(state)];
  }

  PrefixCache cache_;
  BlockAllocator allocator_;
  std::vector<uint32_t> holders_;  // Of each block: live ranges.
  uint32_t num_held_ = 0;          // Blocks that have a holder.
  DeferredRelease<KvBlockRange> quarantine_;
  StepId newest_launched_;
  StepId newest_done_;
  std::array<uint32_t, kNumKvRangeStates> blocks_in_ = {};
};

}  // namespace baton

#endif  // BATON_ENGINE_KV_CACHE_MANAGER_H_
