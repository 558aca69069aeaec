#include "engine/block_allocator.h"

#include "base/logging.h"

namespace baton {

BlockAllocator::BlockAllocator(KvPool* pool, PrefixCache* cache)
    : pool_(pool), cache_(cache), references_(pool->num_blocks(), 0) {
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
  while (free_.size() < count) cache_->Evict(&free_);
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
    if (references(block) == 0) {
      CHECK(cache_->IsIdle(block)) << "block " << block << " is free";
      cache_->SetBusy(block);
    }
    ++references_[block.value()];
  }
}

void BlockAllocator::Free(std::span<const BlockId> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    CHECK_GT(references(*it), 0u) << "block " << *it << " freed twice";
    if (--references_[it->value()] > 0) continue;
    if (cache_->Contains(*it)) {
      cache_->SetIdle(*it);
    } else {
      free_.push_back(*it);
    }
  }
}

void BlockAllocator::CheckInvariants() const {
  std::vector<bool> seen(num_blocks(), false);
  for (BlockId block : free_) {
    CHECK(!seen[block.value()]) << "block " << block << " is free twice";
    CHECK_EQ(references(block), 0u) << "block " << block;
    CHECK(!cache_->Contains(block)) << "block " << block;
    seen[block.value()] = true;
  }
  for (uint32_t i = 0; i < num_blocks(); ++i) {
    const bool is_idle = cache_->IsIdle(BlockId(i));
    CHECK(!seen[i] || !is_idle) << "block " << i << " is free twice";
    CHECK((seen[i] || is_idle) != (references_[i] > 0))
        << "block " << i << " is lost";
  }
  cache_->CheckInvariants();
}

}  // namespace baton
