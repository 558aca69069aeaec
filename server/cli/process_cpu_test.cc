#include "server/cli/process_cpu.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ProcessCpuTest, ReadsTheFieldsBehindANameWithBrackets) {
  const auto usage = ParseProcessStat(
      "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 100 "
      "8192000 25 18446744073709551615 1\n",
      100, 4096);
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->pid, 42);
  EXPECT_EQ(usage->name, "a) b");
  EXPECT_EQ(usage->cpu_time, absl::Seconds(2));
  EXPECT_EQ(usage->resident_bytes, 25u * 4096);
}

TEST(ProcessCpuTest, RefusesWhatIsNoStat) {
  EXPECT_FALSE(ParseProcessStat("", 100, 4096).ok());
  EXPECT_FALSE(ParseProcessStat("42 (a) S 1 2", 100, 4096).ok());
}

TEST(ProcessCpuTest, SeesTheTimeThisProcessUses) {
  const absl::Duration before = OwnCpuTime();
  const auto first = ReadProcessUsage(getpid());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->resident_bytes, 0u);
  while (OwnCpuTime() - before < absl::Milliseconds(60)) {
  }
  const auto second = ReadProcessUsage(getpid());
  ASSERT_TRUE(second.ok());
  EXPECT_GE(second->cpu_time - first->cpu_time, absl::Milliseconds(30));
}

TEST(ProcessCpuTest, SaysWhenThereIsNoSuchProcess) {
  EXPECT_EQ(ReadProcessUsage(1 << 30).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
