#include "server/kv_pool_size.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "comm/kv_pool.h"
#include "server/edge/memory_use.h"

namespace baton {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Of the free memory that the default takes.
constexpr uint64_t kMemoryShare = 4;

absl::Status CheckFits(const char* flag, uint64_t bytes, uint64_t free_bytes) {
  if (bytes <= free_bytes) return absl::OkStatus();
  return FieldError(flag, absl::StrCat(bytes, " bytes are more than the ",
                                       free_bytes, " that are free"));
}

}  // namespace

uint64_t ReadFreeMemory(const std::string& root) {
  uint64_t bytes = ReadAvailableMemory(root).value_or(kUnlimited);
  for (const CgroupMemory& cgroup : ReadCgroups(root)) {
    const uint64_t used =
        cgroup.usage_bytes -
        std::min(cgroup.usage_bytes, cgroup.inactive_file_bytes);
    bytes = std::min(bytes,
                     cgroup.limit_bytes - std::min(cgroup.limit_bytes, used));
  }
  return bytes;
}

absl::StatusOr<uint32_t> NumKvBlocks(const KvPoolRequest& request,
                                     uint64_t free_bytes) {
  if (request.kv_blocks.has_value()) {
    RETURN_IF_ERROR(
        CheckFits("kv_blocks",
                  KvPool::RegionBytes(*request.kv_blocks, request.block_bytes),
                  free_bytes));
    return *request.kv_blocks;
  }
  uint64_t bytes = free_bytes / kMemoryShare;
  uint64_t max_blocks = request.useful_blocks;
  if (request.kv_cache_bytes.has_value()) {
    bytes = request.kv_cache_bytes->bytes;
    max_blocks = std::numeric_limits<uint32_t>::max();
    RETURN_IF_ERROR(CheckFits("kv_cache_bytes", bytes, free_bytes));
  }
  // A block's generation lies beside it.
  const uint64_t blocks =
      std::min(bytes / (request.block_bytes + sizeof(uint64_t)), max_blocks);
  if (blocks == 0) {
    return FieldError("kv_cache_bytes",
                      absl::StrCat(bytes, " bytes hold no block of ",
                                   request.block_bytes, " bytes"));
  }
  return static_cast<uint32_t>(blocks);
}

}  // namespace baton
