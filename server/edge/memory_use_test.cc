#include "server/edge/memory_use.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace baton {
namespace {

// A made-up machine.
class MemoryUseTest : public ::testing::Test {
 protected:
  MemoryUseTest() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full(root_ + path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void WriteCgroup(const std::string& folder, const std::string& limit,
                   const std::string& usage) {
    Write("/sys/fs/cgroup" + folder + "/memory.max", limit + "\n");
    Write("/sys/fs/cgroup" + folder + "/memory.current", usage + "\n");
  }

  const std::string root_ =
      ::testing::TempDir() +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MemoryUseTest, NothingToReadIsNoLimit) {
  EXPECT_FALSE(ReadMemoryUse(root_).has_value());
  EXPECT_FALSE(ReadAvailableMemory(root_).has_value());
  EXPECT_TRUE(ReadCgroups(root_).empty());
}

TEST_F(MemoryUseTest, WithoutALimitItIsTheMachinesMemory) {
  Write("/proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n");
  WriteCgroup("", "max", "10");
  const auto use = ReadMemoryUse(root_);
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->limit_bytes, 1'024'000u);
  EXPECT_EQ(use->used_bytes, 768'000u);
  EXPECT_EQ(use->ratio(), 0.75);
}

TEST_F(MemoryUseTest, TheNearestOfAllCgroupsAboveUsCountsWithoutFileCache) {
  Write("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 0 kB\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  WriteCgroup("/a/b", "1000", "700");
  WriteCgroup("/a", "10000", "9000");
  EXPECT_EQ(ReadMemoryUse(root_)->limit_bytes, 10'000u);
  Write("/sys/fs/cgroup/a/memory.stat",
        "anon 1\ninactive_file 3000\nactive_file 1000\n");
  const auto use = ReadMemoryUse(root_);
  EXPECT_EQ(use->limit_bytes, 1000u) << "cache goes before anybody is killed";
  EXPECT_EQ(use->used_bytes, 700u);
}

TEST_F(MemoryUseTest, VersionOneCountsUnlessItIsUnlimited) {
  const std::string folder = "/sys/fs/cgroup/memory/pod";
  Write("/proc/self/cgroup", "4:memory:/pod\n");
  Write(folder + "/memory.usage_in_bytes", "2500\n");
  Write(folder + "/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(ReadMemoryUse(root_).has_value());
  Write(folder + "/memory.limit_in_bytes", "5000\n");
  Write(folder + "/memory.stat",
        "inactive_file 9\ntotal_inactive_file 400\ntotal_active_file 100\n");
  EXPECT_EQ(ReadMemoryUse(root_)->ratio(), 0.4);
}

TEST_F(MemoryUseTest, ALimitOnTheAddressSpaceCounts) {
  Write("/proc/self/limits",
        "Limit            Soft Limit  Hard Limit  Units\n"
        "Max address space         unlimited  unlimited  bytes\n");
  Write("/proc/self/statm", "100 20 10 1 0 30 0\n");
  EXPECT_FALSE(ReadMemoryUse(root_).has_value());
  Write("/proc/self/limits",
        "Max address space         8192000  unlimited  bytes\n");
  const auto use = ReadMemoryUse(root_);
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->limit_bytes, 8'192'000u);
  EXPECT_EQ(use->used_bytes, 100u * sysconf(_SC_PAGESIZE));
}

TEST_F(MemoryUseTest, MoreThanTheLimitIsAboveOne) {
  WriteCgroup("", "1000", "1500");
  EXPECT_EQ(ReadMemoryUse(root_)->ratio(), 1.5);
  WriteCgroup("", "0", "1500");
  EXPECT_GT(ReadMemoryUse(root_)->ratio(), 1.0);
}

TEST(MemoryUseHereTest, ThisMachineTells) {
  const auto use = ReadMemoryUse();
  ASSERT_TRUE(use.has_value());
  EXPECT_GT(use->used_bytes, 1u << 20);
  EXPECT_GT(use->limit_bytes, 1u << 20);
}

}  // namespace
}  // namespace baton
