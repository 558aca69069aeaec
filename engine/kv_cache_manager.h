// Gives KV blocks to sequences and takes them back when nothing touches them.
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
  uint32_t num_free() const { return allocator_.num_free(); }
  // Blocks of all ranges in a state, a shared one with each range that has it;
  // kQuarantined: those to be free soon.
  uint32_t num_in(KvRangeState state) const {
    return blocks_in_[static_cast<int>(state)];
  }

  // Dies unless every allocated block is either in as many live ranges as it
  // has references, or in quarantine with one. `ranges`: all of them.
  void CheckInvariants(std::span<const KvBlockRange* const> ranges) const;

 private:
  void LeaveToOthers(KvBlockRange* range);
  void Free(KvBlockRange* range);
  void Move(KvBlockRange* range, KvRangeState to);
  uint32_t& CountIn(KvRangeState state) {
    return blocks_in_[static_cast<int>(state)];
  }

  BlockAllocator allocator_;
  DeferredRelease<KvBlockRange> quarantine_;
  StepId newest_launched_;
  StepId newest_done_;
  std::array<uint32_t, kNumKvRangeStates> blocks_in_ = {};
};

}  // namespace baton

#endif  // BATON_ENGINE_KV_CACHE_MANAGER_H_
