// The KV blocks of one sequence, and what may happen to them. Its first ones
// may be other sequences' too: nobody writes these any more.
#ifndef BATON_ENGINE_KV_BLOCK_RANGE_H_
#define BATON_ENGINE_KV_BLOCK_RANGE_H_

#include <vector>

#include "comm/kv_pool.h"

namespace baton {

enum class KvRangeState {
  kFree,         // No blocks.
  kReserved,     // Allocated; nothing reads or writes them.
  kFilling,      // Launched steps write the prompt's rows.
  kExported,     // Leased to a peer, and filling or filled.
  kImporting,    // A transfer writes them; no step touches them.
  kOwned,        // Every row below the sequence's computed length is there.
  kQuarantined,  // Given up, but a launched step may touch them.
};
inline constexpr int kNumKvRangeStates = 7;

// A block is never free while a launched step may touch it, or a transfer may
// write it or read it undetected.
constexpr bool IsLegalTransition(KvRangeState from, KvRangeState to) {
  using enum KvRangeState;
  switch (from) {
    case kFree:
      return to == kReserved;  // Admission.
    case kReserved:
      return to == kFilling ||      // The first chunk is launched.
             to == kExported ||     // StartExport.
             to == kImporting ||    // StartImport.
             to == kQuarantined ||  // Preempted before its first chunk...
             to == kFree;           // ...and no step is in flight.
    case kFilling:
      return to == kOwned ||        // The last chunk is committed.
             to == kQuarantined ||  // Preempted or ended in mid-prompt...
             to == kFree;           // ...and no step is in flight.
    case kExported:
      return to == kQuarantined ||  // KvExportEnded...
             to == kFree;           // ...and no step is in flight.
    case kImporting:
      return to == kOwned ||        // KvImportEnded, OK.
             to == kQuarantined ||  // KvImportEnded, an error...
             to == kFree;           // ...and no step is in flight.
    case kOwned:
      return to == kQuarantined ||  // Preempted or ended...
             to == kFree;           // ...and no step is in flight.
    case kQuarantined:
      return to == kFree;  // The newest step launched by then is done.
  }
  return false;
}

// Owned by the engine. Only KvCacheManager changes it.
class KvBlockRange {
 public:
  KvRangeState state() const { return state_; }
  // Block i holds the rows [i, i + 1) * CacheSpec::kBlockTokens.
  const std::vector<BlockId>& blocks() const { return blocks_; }

 private:
  friend class KvCacheManager;

  KvRangeState state_ = KvRangeState::kFree;
  std::vector<BlockId> blocks_;
};

}  // namespace baton

#endif  // BATON_ENGINE_KV_BLOCK_RANGE_H_
