// The memory that holds every KV block of a process, readable by peers.
#ifndef BATON_COMM_KV_POOL_H_
#define BATON_COMM_KV_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/strong_int.h"

namespace baton {

// Index of a block in its process' pool.
BATON_DEFINE_STRONG_INT(BlockId, uint32_t);

struct KvBlockRef {
  BlockId block;
  uint64_t generation = 0;
};

// A view of one registered region (it does not own the memory; the transport
// that allocated it does, and must outlive the pool):
//   region      := generation{num_blocks} padding-to-4096 block{num_blocks}
//   generation  := u64, little endian: counts the contents, never reused
//   block       := block_bytes bytes, a multiple of 64
// A reader in another process copies a block and trusts the copy only if the
// block's generation was the expected one before and after.
//
// Owned by the engine: one thread writes the generations of a block. Peers read
// at any time.
class KvPool {
 public:
  KvPool(std::byte* region, uint32_t num_blocks, size_t block_bytes);

  // A part of it, which one rank owns: its ids begin at 0 again. It has no
  // region of its own.
  KvPool Slice(BlockId first, uint32_t num_blocks) const;

  static size_t RegionBytes(uint32_t num_blocks, size_t block_bytes);
  // Offset of block 0 from the region's start.
  static size_t BlocksOffset(uint32_t num_blocks);

  uint32_t num_blocks() const { return num_blocks_; }
  size_t block_bytes() const { return block_bytes_; }
  // Null in a slice.
  std::byte* region() const { return region_; }
  std::byte* blocks() const { return blocks_; }
  std::byte* block(BlockId id) const {
    return blocks_ + id.value() * block_bytes_;
  }

  uint64_t generation(BlockId id) const {
    return generations_[id.value()].load(std::memory_order_relaxed);
  }
  // The block gets new content: stores the next generation, then a full fence,
  // so that no later write to the block is seen before it.
  uint64_t BeginNewContent(BlockId id);

 private:
  KvPool(const KvPool& whole, BlockId first, uint32_t num_blocks);

  std::byte* const region_;
  std::byte* const blocks_;
  std::atomic<uint64_t>* const generations_;
  const uint32_t num_blocks_;
  const size_t block_bytes_;
};

// Orders all of this thread's loads and stores, non-temporal ones included.
// (std::atomic_thread_fence is unknown to g++'s ThreadSanitizer.)
inline void FullFence() { __sync_synchronize(); }

// Copies a block out of another process's region; false if what was copied may
// not be the content that `ref` names. REQUIRES: ref.block < num_blocks.
bool CopyBlockIfCurrent(const std::byte* region, uint32_t num_blocks,
                        size_t block_bytes, KvBlockRef ref, std::byte* to);

}  // namespace baton

#endif  // BATON_COMM_KV_POOL_H_
