#include "server/kv_pool_size.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/field_error.h"

namespace baton {
namespace {

constexpr uint64_t kPlenty = 400'000;
constexpr size_t kBlock = 992;  // And 8 bytes of generation: 1000.

KvPoolRequest Request() {
  return {.kv_cache_bytes = {},
          .kv_blocks = {},
          .block_bytes = kBlock,
          .useful_blocks = 1000};
}

TEST(NumKvBlocksTest, TheDefaultIsAQuarterOfTheFreeMemory) {
  EXPECT_EQ(*NumKvBlocks(Request(), kPlenty), 100u);
}

TEST(NumKvBlocksTest, TheDefaultIsNotMoreThanCanBeUsed) {
  KvPoolRequest request = Request();
  request.useful_blocks = 7;
  EXPECT_EQ(*NumKvBlocks(request, kPlenty), 7u);
  request.kv_cache_bytes = ByteSize{50'000};
  EXPECT_EQ(*NumKvBlocks(request, kPlenty), 50u) << "but a flag is obeyed";
}

TEST(NumKvBlocksTest, AGivenSizeOrNumberIsTaken) {
  KvPoolRequest request = Request();
  request.kv_cache_bytes = ByteSize{80'000};
  EXPECT_EQ(*NumKvBlocks(request, kPlenty), 80u);
  request.kv_cache_bytes.reset();
  request.kv_blocks = 3;
  EXPECT_EQ(*NumKvBlocks(request, kPlenty), 3u);
}

TEST(NumKvBlocksTest, TooBigNamesTheFlag) {
  KvPoolRequest request = Request();
  request.kv_cache_bytes = ByteSize{400'001};
  EXPECT_EQ(ErrorField(NumKvBlocks(request, kPlenty).status()),
            "kv_cache_bytes");
  request.kv_cache_bytes.reset();
  request.kv_blocks = 401;
  EXPECT_EQ(ErrorField(NumKvBlocks(request, kPlenty).status()), "kv_blocks");
}

TEST(NumKvBlocksTest, LessThanABlockNamesTheFlag) {
  KvPoolRequest request = Request();
  request.kv_cache_bytes = ByteSize{999};
  EXPECT_EQ(ErrorField(NumKvBlocks(request, kPlenty).status()),
            "kv_cache_bytes");
  EXPECT_EQ(ErrorField(NumKvBlocks(Request(), 3000).status()),
            "kv_cache_bytes");
}

// ---- ReadFreeMemory over a made-up machine
// ------------------------------------

class ReadFreeMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full(root_ + path);
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }

  const std::string root_ =
      ::testing::TempDir() +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(ReadFreeMemoryTest, TheMachinesOwnMemoryWithoutCgroups) {
  Write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   1000 kB\n");
  EXPECT_EQ(ReadFreeMemory(root_), 1'024'000u);
}

TEST_F(ReadFreeMemoryTest, TheTightestCgroupAboveUsCounts) {
  Write("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "10\n");
  Write("/sys/fs/cgroup/a/memory.max", "1000\n");
  Write("/sys/fs/cgroup/a/memory.current", "600\n");
  EXPECT_EQ(ReadFreeMemory(root_), 400u);
  Write("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 100\n");
  EXPECT_EQ(ReadFreeMemory(root_), 500u) << "cache can be dropped";
}

TEST_F(ReadFreeMemoryTest, VersionOneAndAContainersOwnRootCountToo) {
  Write("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  Write("/proc/self/cgroup", "4:memory:/not/visible/here\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "7000\n");
  EXPECT_EQ(ReadFreeMemory(root_), 0u) << "over its limit";
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "2000\n");
  EXPECT_EQ(ReadFreeMemory(root_), 3000u);
}

TEST_F(ReadFreeMemoryTest, ThisMachineHasSome) {
  EXPECT_GT(ReadFreeMemory(), 1u << 20);
}

}  // namespace
}  // namespace baton
