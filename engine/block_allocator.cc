#include "engine/block_allocator.h"

#include "base/logging.h"

namespace baton {

BlockAllocator::BlockAllocator(KvPool* pool)
    : pool_(pool), references_(pool->num_blocks(), 0) {
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
    references_[block.value()] = 1;
    pool_->BeginNewContent(block);
    blocks->push_back(block);
  }
  return true;
}

void BlockAllocator::Share(std::span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    CHECK_GT(references(block), 0u) << "block " << block << " is free";
    ++references_[block.value()];
  }
}

void BlockAllocator::Free(std::span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    CHECK_GT(references(block), 0u) << "block " << block << " freed twice";
    if (--references_[block.value()] == 0) free_.push_back(block);
  }
}

void BlockAllocator::CheckInvariants() const {
  std::vector<bool> seen(num_blocks(), false);
  for (BlockId block : free_) {
    CHECK(!seen[block.value()]) << "block " << block << " is free twice";
    CHECK_EQ(references(block), 0u) << "block " << block;
    seen[block.value()] = true;
  }
  for (uint32_t i = 0; i < num_blocks(); ++i) {
    CHECK(seen[i] != (references_[i] > 0)) << "block " << i << " is lost";
  }
}

}  // namespace baton
