#include "engine/block_allocator.h"

#include "base/logging.h"

namespace baton {

BlockAllocator::BlockAllocator(KvPool* pool)
    : pool_(pool), allocated_(pool->num_blocks(), false) {
  free_.reserve(pool->num_blocks());
  for (uint32_t i = pool->num_blocks(); i > 0; --i) {
    free_.push_back(BlockId(i - 1));
  }
}

BlockAllocator::~BlockAllocator() {
  CHECK_EQ(num_free(), num_blocks()) << "destroyed with blocks out";
}

bool BlockAllocator::Allocate(uint32_t count, std::vector<BlockId>* blocks) {
  if (count > num_free()) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const BlockId block = free_.back();
    free_.pop_back();
    allocated_[block.value()] = true;
    pool_->BeginNewContent(block);
    blocks->push_back(block);
  }
  return true;
}

void BlockAllocator::Free(std::span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    CHECK(allocated_[block.value()]) << "block " << block << " freed twice";
    allocated_[block.value()] = false;
    free_.push_back(block);
  }
}

void BlockAllocator::CheckInvariants() const {
  std::vector<bool> seen(num_blocks(), false);
  for (BlockId block : free_) {
    CHECK(!seen[block.value()]) << "block " << block << " is free twice";
    CHECK(!allocated_[block.value()]) << "block " << block;
    seen[block.value()] = true;
  }
  for (uint32_t i = 0; i < num_blocks(); ++i) {
    CHECK(seen[i] != allocated_[i]) << "block " << i << " is lost";
  }
}

}  // namespace baton
