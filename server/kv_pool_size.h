// How many KV blocks a process takes.
#ifndef BATON_SERVER_KV_POOL_SIZE_H_
#define BATON_SERVER_KV_POOL_SIZE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/edge/config.h"

namespace baton {

// What the machine has and the process' cgroup leaves. Reads /proc and /sys
// below `root`. What cannot be read does not limit.
uint64_t ReadFreeMemory(const std::string& root = "");

struct KvPoolRequest {
  // At most one of the flags.
  std::optional<ByteSize> kv_cache_bytes;
  std::optional<uint32_t> kv_blocks;
  size_t block_bytes = 0;
  // The default takes no more.
  uint32_t useful_blocks = 0;
};

// By default a quarter of the free memory, and at most the useful blocks.
// FieldError naming the flag when a given size is not free or holds no block,
// and "kv_cache_bytes" when not even one block is free.
absl::StatusOr<uint32_t> NumKvBlocks(const KvPoolRequest& request,
                                     uint64_t free_bytes);

}  // namespace baton

#endif  // BATON_SERVER_KV_POOL_SIZE_H_
