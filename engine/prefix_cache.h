// Which blocks hold the KV of which prefixes.
//
//   the root of a salt -> block -> block -> ...
//
// A tree: each cached block has its tokens and the cached block before it, so
// that what is found is what was asked for, also where two keys are equal.
#ifndef BATON_ENGINE_PREFIX_CACHE_H_
#define BATON_ENGINE_PREFIX_CACHE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/prefix_key.h"
#include "comm/kv_pool.h"

namespace baton {

// A place in the tree, as long as PrefixCache::Has it.
struct PrefixPosition {
  uint32_t num_blocks = 0;  // 0: at the root, of any salt.
  BlockId block;            // The last of them,
  uint64_t entry = 0;       // and its entry, which no other will ever be.

  friend bool operator==(const PrefixPosition&,
                         const PrefixPosition&) = default;
};

// The block to find or to keep behind a position.
struct PrefixBlock {
  PrefixKey key;
  std::span<const uint32_t> tokens;  // CacheSpec::kBlockTokens of them.
  std::string_view salt;
};

// Owned by the engine. Pure: no block is touched, all memory is taken when it
// is made, but for salts. Of its blocks those that are idle, which is nobody's,
// may be evicted.
class PrefixCache {
 public:
  explicit PrefixCache(uint32_t num_blocks);

  // Every block up to the position is still what it was.
  bool Has(const PrefixPosition& position) const;
  // On to the cached block of these tokens; false, and nothing changed, if
  // there is none. REQUIRES: Has(*position).
  bool Advance(const PrefixBlock& next, PrefixPosition* position) const;
  // Keeps a block of these tokens, and goes on to it. False, and nothing
  // changed, if the key is another's. REQUIRES: Has(*position), no Advance from
  // there; the block is somebody's, and not cached.
  bool Insert(const PrefixBlock& next, BlockId block, PrefixPosition* position);
  // One block back. REQUIRES: Has(position), not the root.
  PrefixPosition Before(const PrefixPosition& position) const;

  bool Contains(BlockId block) const { return entries_[block.value()].id != 0; }
  bool IsIdle(BlockId block) const { return entries_[block.value()].idle; }
  // Nobody has the block any more; somebody has it again. REQUIRES: Contains.
  void SetIdle(BlockId block);
  void SetBusy(BlockId block);
  // Forgets the idle block that was somebody's the longest ago; before it one
  // behind it that is idle too. Busy ones behind are no longer found. Appends
  // the idle blocks that it forgot. REQUIRES: num_idle() > 0.
  void Evict(std::vector<BlockId>* freed);

  uint32_t num_blocks() const { return static_cast<uint32_t>(by_key_.size()); }
  uint32_t num_idle() const { return num_idle_; }
  // Ever forgotten.
  uint64_t num_evicted() const { return num_evicted_; }

  void CheckInvariants() const;

 private:
  // Of one block. Links are indices of entries, or kNone.
  struct Entry {
    uint64_t id = 0;  // 0: the block is not cached.
    PrefixKey key;
    std::string salt;  // Of a first block.
    uint32_t depth = 0;
    uint32_t parent;  // kNone: the root.
    uint32_t first_child;
    uint32_t next_sibling;
    uint32_t previous_sibling;
    bool idle = false;
    // Among the idle ones, by the time at which they became that.
    uint32_t older;
    uint32_t newer;
  };

  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t* TokensOf(uint32_t index);
  const uint32_t* TokensOf(uint32_t index) const;
  bool Holds(const Entry& entry, const PrefixPosition& before,
             const PrefixBlock& block) const;
  uint32_t FirstIdleChild(uint32_t index) const;
  void Forget(uint32_t index, std::vector<BlockId>* freed);
  void UnlinkFromParent(uint32_t index);
  void UnlinkFromIdle(uint32_t index);

  std::vector<Entry> entries_;    // By block.
  std::vector<uint32_t> tokens_;  // [blocks, kBlockTokens]
  absl::flat_hash_map<PrefixKey, uint32_t> by_key_;
  uint32_t oldest_idle_ = kNone;
  uint32_t newest_idle_ = kNone;
  uint32_t num_idle_ = 0;
  uint64_t newest_id_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_PREFIX_CACHE_H_
