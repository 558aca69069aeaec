#include "server/edge/memory_use.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace baton {
namespace {

// Version 1 says so when there is no limit, rounded to pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;
constexpr uint64_t kKib = 1024;

// A cgroup's file names, for both versions.
struct CgroupFiles {
  const char* line;  // In /proc/self/cgroup, before the path.
  const char* mount;
  const char* limit;
  const char* usage;
  const char* inactive_file;  // In memory.stat.
  const char* active_file;
};
constexpr CgroupFiles kCgroups[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
     "active_file"},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
     "memory.usage_in_bytes", "total_inactive_file", "total_active_file"},
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
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    uint64_t number = 0;
    if (rest >> number) return number;
  }
  return std::nullopt;
}

void ReadCgroup(const std::string& folder, const CgroupFiles& files,
                std::vector<CgroupMemory>* cgroups) {
  const auto limit = ReadNumber(folder + "/" + files.limit);
  const auto usage = ReadNumber(folder + "/" + files.usage);
  if (!limit.has_value() || !usage.has_value() || *limit >= kNoLimit) return;
  const auto stat = [&](const char* key) {
    return ReadKey(folder + "/memory.stat", std::string(key) + " ").value_or(0);
  };
  cgroups->push_back({.limit_bytes = *limit,
                      .usage_bytes = *usage,
                      .inactive_file_bytes = stat(files.inactive_file),
                      .active_file_bytes = stat(files.active_file)});
}

// The soft limit on the address space, and what is mapped of it.
std::optional<MemoryUse> ReadAddressSpace(const std::string& root) {
  const auto limit = ReadKey(root + "/proc/self/limits", "Max address space ");
  const auto pages = ReadNumber(root + "/proc/self/statm");
  if (!limit.has_value() || !pages.has_value() || *limit == 0) {
    return std::nullopt;
  }
  return MemoryUse{
      .used_bytes = *pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
      .limit_bytes = *limit};
}

}  // namespace

std::vector<CgroupMemory> ReadCgroups(const std::string& root) {
  std::vector<CgroupMemory> cgroups;
  for (const CgroupFiles& files : kCgroups) {
    ReadCgroup(root + files.mount, files, &cgroups);
    std::ifstream in(root + "/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
      const size_t at = line.find(files.line);
      if (at == std::string::npos) continue;
      std::string path = line.substr(at + std::string(files.line).size());
      while (path.size() > 1) {
        ReadCgroup(root + files.mount + path, files, &cgroups);
        path.resize(path.rfind('/'));
      }
    }
  }
  return cgroups;
}

std::optional<uint64_t> ReadAvailableMemory(const std::string& root) {
  const auto kib = ReadKey(root + "/proc/meminfo", "MemAvailable:");
  return kib.has_value() ? std::optional(*kib * kKib) : std::nullopt;
}

std::optional<MemoryUse> ReadMemoryUse(const std::string& root) {
  std::optional<MemoryUse> nearest = ReadAddressSpace(root);
  for (const CgroupMemory& cgroup : ReadCgroups(root)) {
    const uint64_t cache =
        cgroup.inactive_file_bytes + cgroup.active_file_bytes;
    const MemoryUse use = {
        .used_bytes = cgroup.usage_bytes - std::min(cgroup.usage_bytes, cache),
        .limit_bytes = std::max<uint64_t>(cgroup.limit_bytes, 1)};
    if (!nearest.has_value() || use.ratio() > nearest->ratio()) nearest = use;
  }
  if (nearest.has_value()) return nearest;
  const auto total_kib = ReadKey(root + "/proc/meminfo", "MemTotal:");
  const auto available = ReadAvailableMemory(root);
  if (!total_kib.has_value() || !available.has_value() || *total_kib == 0) {
    return std::nullopt;
  }
  const uint64_t total = *total_kib * kKib;
  return MemoryUse{.used_bytes = total - std::min(total, *available),
                   .limit_bytes = total};
}

}  // namespace baton
