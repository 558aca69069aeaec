#include "comm/kv_pool.h"

#include <cstring>

#include "base/logging.h"
#include "base/sanitizers.h"

namespace baton {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kBlockAlignment = 64;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Another process may write `from` meanwhile; the caller finds out afterwards.
void CopyRacing(const std::byte* from, size_t bytes, std::byte* to) {
#ifdef BATON_TSAN
  // The race is meant; word by word, ThreadSanitizer sees that.
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const auto* word = reinterpret_cast<const std::atomic<uint64_t>*>(from + i);
    const uint64_t value = word->load(std::memory_order_relaxed);
    std::memcpy(to + i, &value, sizeof value);
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

KvPool::KvPool(std::byte* region, uint32_t num_blocks, size_t block_bytes)
    : region_(region),
      blocks_(region + BlocksOffset(num_blocks)),
      generations_(reinterpret_cast<std::atomic<uint64_t>*>(region)),
      num_blocks_(num_blocks),
      block_bytes_(block_bytes) {
  CHECK_EQ(block_bytes % kBlockAlignment, 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(region) % kBlockAlignment, 0u);
}

KvPool::KvPool(const KvPool& whole, BlockId first, uint32_t num_blocks)
    : region_(nullptr),
      blocks_(whole.block(first)),
      generations_(whole.generations_ + first.value()),
      num_blocks_(num_blocks),
      block_bytes_(whole.block_bytes_) {
  CHECK_LE(uint64_t{first.value()} + num_blocks, whole.num_blocks_);
}

KvPool KvPool::Slice(BlockId first, uint32_t num_blocks) const {
  return KvPool(*this, first, num_blocks);
}

size_t KvPool::RegionBytes(uint32_t num_blocks, size_t block_bytes) {
  return BlocksOffset(num_blocks) + num_blocks * block_bytes;
}

size_t KvPool::BlocksOffset(uint32_t num_blocks) {
  const size_t generations = num_blocks * sizeof(uint64_t);
  return (generations + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint64_t KvPool::BeginNewContent(BlockId id) {
  std::atomic<uint64_t>& generation = generations_[id.value()];
  const uint64_t next = generation.load(std::memory_order_relaxed) + 1;
  generation.store(next, std::memory_order_relaxed);
  FullFence();
  return next;
}

bool CopyBlockIfCurrent(const std::byte* region, uint32_t num_blocks,
                        size_t block_bytes, KvBlockRef ref, std::byte* to) {
  const auto& generation =
      reinterpret_cast<const std::atomic<uint64_t>*>(region)[ref.block.value()];
  if (generation.load(std::memory_order_acquire) != ref.generation) {
    return false;
  }
  CopyRacing(region + KvPool::BlocksOffset(num_blocks) +
                 ref.block.value() * block_bytes,
             block_bytes, to);
  FullFence();  // The copy's loads come before this load.
  return generation.load(std::memory_order_relaxed) == ref.generation;
}

}  // namespace baton
