// Which blocks of the pool are free: those without content, and those that only
// the prefix cache still knows.
#ifndef BATON_ENGINE_BLOCK_ALLOCATOR_H_
#define BATON_ENGINE_BLOCK_ALLOCATOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "comm/kv_pool.h"
#include "engine/prefix_cache.h"

namespace baton {

// Owned by the engine. Blocks are plain ids with counts of references, freed
// explicitly: dies if it is destroyed with blocks out, or if a block is freed
// more often than it was allocated and shared.
class BlockAllocator {
 public:
  // Borrows both: the pool, whose generations it advances, and the cache, which
  // it tells who is idle.
  BlockAllocator(KvPool* pool, PrefixCache* cache);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // Appends `count` blocks with a new generation each, or, when fewer are free,
  // returns false and changes nothing. Evicts from the cache when no others are
  // left.
  bool Allocate(uint32_t count, std::vector<BlockId>* blocks);
  // One reference more to each. REQUIRES: they are allocated or cached.
  void Share(std::span<const BlockId> blocks);
  // One reference less to each, the last one first; without any a block is
  // free.
  void Free(std::span<const BlockId> blocks);

  // 0: it is free.
  uint32_t references(BlockId block) const {
    return references_[block.value()];
  }
  uint32_t num_free() const {
    return static_cast<uint32_t>(free_.size()) + cache_->num_idle();
  }
  uint32_t num_blocks() const { return pool_->num_blocks(); }

  // Dies unless free, idle and allocated blocks are the pool's, each once.
  void CheckInvariants() const;

 private:
  KvPool* const pool_;
  PrefixCache* const cache_;
  // Not cached. The newest freed is the next allocated.
  std::vector<BlockId> free_;
  std::vector<uint32_t> references_;
};

}  // namespace baton

#endif  // BATON_ENGINE_BLOCK_ALLOCATOR_H_
