// A KV pool in this process' own memory.
#ifndef BATON_TESTS_FAKES_HEAP_KV_POOL_H_
#define BATON_TESTS_FAKES_HEAP_KV_POOL_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "comm/kv_pool.h"

namespace baton {

// Owns the region, filled with `fill`, so that a row that nobody wrote shows.
class HeapKvPool {
 public:
  HeapKvPool(uint32_t num_blocks, size_t block_bytes, int fill = 0)
      : region_(Allocate(KvPool::RegionBytes(num_blocks, block_bytes))),
        pool_(region_.get(), num_blocks, block_bytes) {
    std::memset(pool_.blocks(), fill, num_blocks * block_bytes);
  }

  KvPool* get() { return &pool_; }
  KvPool* operator->() { return &pool_; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Delete {
    void operator()(std::byte* region) const {
      ::operator delete(region, kAlignment);
    }
  };
  static std::unique_ptr<std::byte, Delete> Allocate(size_t bytes) {
    auto* region = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    std::memset(region, 0, bytes);
    return std::unique_ptr<std::byte, Delete>(region);
  }

  std::unique_ptr<std::byte, Delete> region_;
  KvPool pool_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_HEAP_KV_POOL_H_
