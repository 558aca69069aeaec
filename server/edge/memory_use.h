// How much memory a process may take, and how much of that is taken.
#ifndef BATON_SERVER_EDGE_MEMORY_USE_H_
#define BATON_SERVER_EDGE_MEMORY_USE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton {

// A cgroup that has a limit.
struct CgroupMemory {
  uint64_t limit_bytes = 0;
  uint64_t usage_bytes = 0;  // With the cache of files.
  // Of that cache: what the system takes back first, and what it takes back
  // before it kills anybody.
  uint64_t inactive_file_bytes = 0;
  uint64_t active_file_bytes = 0;
};

// Those of versions 1 and 2 that the process is in, and those above them. Reads
// /proc and /sys below `root`, as all here; what cannot be read limits nothing.
std::vector<CgroupMemory> ReadCgroups(const std::string& root = "");

// What the machine could give; none: it does not tell.
std::optional<uint64_t> ReadAvailableMemory(const std::string& root = "");

struct MemoryUse {
  uint64_t used_bytes = 0;
  uint64_t limit_bytes = 1;

  double ratio() const {
    return static_cast<double>(used_bytes) / static_cast<double>(limit_bytes);
  }
};

// By the limit that is nearest: of a cgroup, or on the process' address space;
// without any, the machine's own memory. None: no limit is known.
std::optional<MemoryUse> ReadMemoryUse(const std::string& root = "");

}  // namespace baton

#endif  // BATON_SERVER_EDGE_MEMORY_USE_H_
