#include "server/kv_pool_size.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "comm/kv_pool.h"

namespace baton {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Of the free memory, and of the free /dev/shm, that the default takes.
constexpr uint64_t kMemoryShare = 4;
constexpr uint64_t kSharedShare = 2;

// A cgroup's file names, for both versions.
struct CgroupFiles {
  const char* line;  // In /proc/self/cgroup, before the path.
  const char* mount;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // In memory.stat.
};
constexpr CgroupFiles kCgroups[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
     "memory.usage_in_bytes", "total_inactive_file"},
};

// The number that the file begins with.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

// The number behind `key` in a file of "key number" lines.
std::optional<uint64_t> ReadKey(const std::string& path,
                                const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return std::nullopt;
}

// What one cgroup leaves.
uint64_t Left(const std::string& folder, const CgroupFiles& files) {
  const auto limit = ReadNumber(folder + "/" + files.limit);
  const auto usage = ReadNumber(folder + "/" + files.usage);
  if (!limit.has_value() || !usage.has_value()) return kUnlimited;
  const uint64_t reclaimable =
      ReadKey(folder + "/memory.stat", files.reclaimable).value_or(0);
  const uint64_t used = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, used);
}

// The least that the process' cgroup and those above it leave.
uint64_t CgroupLeft(const std::string& root, const CgroupFiles& files) {
  std::ifstream in(root + "/proc/self/cgroup");
  uint64_t left = Left(root + files.mount, files);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(files.line);
    if (at == std::string::npos) continue;
    std::string path = line.substr(at + std::string(files.line).size());
    while (path.size() > 1) {
      left = std::min(left, Left(root + files.mount + path, files));
      path.resize(path.rfind('/'));
    }
  }
  return left;
}

absl::Status CheckFits(const char* flag, uint64_t bytes,
                       const KvPoolRequest& request, const FreeMemory& memory) {
  if (bytes > memory.bytes) {
    return FieldError(flag, absl::StrCat(bytes, " bytes are more than the ",
                                         memory.bytes, " that are free"));
  }
  if (request.shared && bytes > memory.shared_bytes) {
    return FieldError(
        flag, absl::StrCat(bytes, " bytes are more than the ",
                           memory.shared_bytes, " that are free in /dev/shm"));
  }
  return absl::OkStatus();
}

}  // namespace

FreeMemory ReadFreeMemory(const std::string& root) {
  FreeMemory memory = {.bytes = kUnlimited, .shared_bytes = kUnlimited};
  if (const auto kib = ReadKey(root + "/proc/meminfo", "MemAvailable:")) {
    memory.bytes = *kib * 1024;
  }
  for (const CgroupFiles& files : kCgroups) {
    memory.bytes = std::min(memory.bytes, CgroupLeft(root, files));
  }
  struct statvfs shm = {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    memory.shared_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  return memory;
}

absl::StatusOr<uint32_t> NumKvBlocks(const KvPoolRequest& request,
                                     const FreeMemory& memory) {
  if (request.kv_blocks.has_value()) {
    RETURN_IF_ERROR(
        CheckFits("kv_blocks",
                  KvPool::RegionBytes(*request.kv_blocks, request.block_bytes),
                  request, memory));
    return *request.kv_blocks;
  }
  uint64_t bytes = memory.bytes / kMemoryShare;
  if (request.shared) {
    bytes = std::min(bytes, memory.shared_bytes / kSharedShare);
  }
  uint64_t max_blocks = request.useful_blocks;
  if (request.kv_cache_bytes.has_value()) {
    bytes = request.kv_cache_bytes->bytes;
    max_blocks = std::numeric_limits<uint32_t>::max();
    RETURN_IF_ERROR(CheckFits("kv_cache_bytes", bytes, request, memory));
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
