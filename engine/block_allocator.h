// Which blocks of the pool are free.
#ifndef BATON_ENGINE_BLOCK_ALLOCATOR_H_
#define BATON_ENGINE_BLOCK_ALLOCATOR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "comm/kv_pool.h"

namespace baton {

// Owned by the engine. Blocks are plain ids, freed explicitly: dies if it is
// destroyed with blocks out, or if a block is freed twice.
class BlockAllocator {
 public:
  // Borrows the pool, whose generations it advances.
  explicit BlockAllocator(KvPool* pool);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // Appends `count` blocks with a new generation each, or, when fewer are free,
  // returns false and changes nothing.
  bool Allocate(uint32_t count, std::vector<BlockId>* blocks);
  void Free(std::span<const BlockId> blocks);

  bool allocated(BlockId block) const { return allocated_[block.value()]; }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_blocks() const { return pool_->num_blocks(); }

  // Dies unless free and allocated blocks are the pool's, each once.
  void CheckInvariants() const;

 private:
  KvPool* const pool_;
  std::vector<BlockId> free_;  // The newest freed is the next allocated.
  std::vector<bool> allocated_;
};

}  // namespace baton

#endif  // BATON_ENGINE_BLOCK_ALLOCATOR_H_
