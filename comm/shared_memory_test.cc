#include "comm/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace baton {
namespace {

TEST(SharedMemoryTest, AnotherMappingHasTheSameBytes) {
  auto created = SharedMemory::Create(10000);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ((*created)->data()[9999], std::byte{0});
  auto opened = SharedMemory::Open((*created)->path(), 10000);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_NE((*opened)->data(), (*created)->data());
  (*opened)->data()[9999] = std::byte{7};
  EXPECT_EQ((*created)->data()[9999], std::byte{7});
}

TEST(SharedMemoryTest, AnotherProcessHasTheSameBytes) {
  auto created = SharedMemory::Create(4096);
  ASSERT_TRUE(created.ok()) << created.status();
  const pid_t child = fork();
  if (child == 0) {
    auto opened = SharedMemory::Open((*created)->path(), 4096);
    if (!opened.ok()) _exit(1);
    (*opened)->data()[1] = std::byte{5};
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ((*created)->data()[1], std::byte{5});
}

TEST(SharedMemoryTest, AnUntouchedWorstCaseTakesNoMemory) {
  EXPECT_TRUE(SharedMemory::Create(size_t{1} << 40).ok());
}

TEST(SharedMemoryTest, RefusesAnotherSizeAndAMissingOne) {
  auto created = SharedMemory::Create(4096);
  ASSERT_TRUE(created.ok()) << created.status();
  const std::string path = (*created)->path();
  EXPECT_EQ(SharedMemory::Open(path, 8192).status().message(),
            path + ": has 4096 bytes, not 8192");
  created->reset();
  EXPECT_EQ(SharedMemory::Open(path, 4096).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
