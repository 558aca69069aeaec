#include "comm/shared_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/logging.h"
#include "comm/sealed_bytes.h"

namespace baton {
namespace {

// A mapping of this many pages of a file that is `short_by` pages shorter.
class SharedPages {
 public:
  SharedPages(size_t pages, size_t short_by)
      : bytes_(pages * sysconf(_SC_PAGESIZE)) {
    const int file = memfd_create("pages", MFD_CLOEXEC);
    CHECK_GE(file, 0);
    CHECK_EQ(ftruncate(file, bytes_ - short_by * sysconf(_SC_PAGESIZE)), 0);
    address_ =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(address_ != MAP_FAILED);
    close(file);
  }
  ~SharedPages() { munmap(address_, bytes_); }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  void* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  void* address_ = nullptr;
};

TEST(PopulateZeroedTest, EveryPageIsBackedAndZero) {
  const SharedPages pages(4, 0);
  ASSERT_TRUE(PopulateZeroed(pages.address(), pages.bytes() - 1).ok());
  unsigned char resident[4] = {};
  ASSERT_EQ(mincore(pages.address(), pages.bytes(), resident), 0);
  for (unsigned char page : resident) EXPECT_EQ(page & 1, 1);
  const auto* bytes = static_cast<const char*>(pages.address());
  EXPECT_EQ(std::string(bytes, pages.bytes()),
            std::string(pages.bytes(), '\0'));
}

// What is beyond the file's end faults just as what its file system lacks.
TEST(PopulateZeroedTest, WhatCannotBeBackedIsRefusedWithTheSize) {
  const SharedPages pages(4, 1);
  constexpr int kPopulateWrite = 23;
  if (madvise(pages.address(), 1, kPopulateWrite) != 0) {
    GTEST_SKIP() << "the kernel cannot tell";
  }
  const absl::Status status = PopulateZeroed(pages.address(), pages.bytes());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status.ToString();
  EXPECT_NE(std::string(status.message()).find(std::to_string(pages.bytes())),
            std::string::npos);
}

TEST(SharedRegionTest, AViewHasTheBytesThatTheOwnerWritesAndOutlivesIt) {
  auto region = SharedRegion::Create(10'000);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->data()[9'999], std::byte{0});
  const auto view = SharedRegionView::Map((*region)->key());
  ASSERT_TRUE(view.ok()) << view.status();
  (*region)->data()[9'999] = std::byte{7};
  EXPECT_EQ((*view)->address()[9'999], std::byte{7});
  const auto base = reinterpret_cast<uint64_t>((*region)->data());
  EXPECT_TRUE((*view)->Is(base, 10'000));
  EXPECT_FALSE((*view)->Is(base, 10'001));
  EXPECT_FALSE((*view)->Is(base, 9'999));
  EXPECT_FALSE((*view)->Is(base + 1, 10'000));
  region->reset();
  EXPECT_EQ((*view)->address()[9'999], std::byte{7});
}

TEST(SharedRegionTest, DamagedAndStaleKeysAreRefused) {
  auto region = SharedRegion::Create(4096);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string key = (*region)->key();
  std::string damaged = key;
  damaged.back() ^= 1;
  for (const std::string& bad : {std::string(), std::string("key"), damaged}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SharedRegionView::Map(bad).status()));
  }
  region->reset();
  EXPECT_TRUE(absl::IsNotFound(SharedRegionView::Map(key).status()));
}

// Another file, or region, in the place of the one that the key is of.
TEST(SharedRegionTest, WhateverTookTheFilesNumberIsNotMapped) {
  auto region = SharedRegion::Create(4096);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string key = (*region)->key();
  region->reset();
  const auto another = SharedRegion::Create(4096);
  ASSERT_TRUE(another.ok());
  const std::string payload(*UnsealBytes((*another)->key()));
  ASSERT_EQ(payload.substr(24), UnsealBytes(key)->substr(24))
      << "the system gives the lowest free number";
  EXPECT_TRUE(absl::IsNotFound(SharedRegionView::Map(key).status()));
  EXPECT_TRUE(SharedRegionView::Map((*another)->key()).ok());
}

TEST(SharedRegionTest, APipeThatTookTheFilesNumberIsNotWaitedFor) {
  auto region = SharedRegion::Create(4096);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string key = (*region)->key();
  region->reset();
  const std::string name = testing::TempDir() + "/pipe";
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  const int pipe = open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_TRUE(UnsealBytes(key)->ends_with("/" + std::to_string(pipe)))
      << "the system gives the lowest free number";
  EXPECT_TRUE(absl::IsNotFound(SharedRegionView::Map(key).status()));
  close(pipe);
  unlink(name.c_str());
}

TEST(SharedRegionTest, NobodyCanShrinkIt) {
  const auto region = SharedRegion::Create(4096);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string path(UnsealBytes((*region)->key())->substr(24));
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_NE(ftruncate(fd, 0), 0);
  close(fd);
}

TEST(SharedRegionTest, WhatNoMachineHasIsRefusedWithTheSize) {
  const size_t bytes = size_t{1} << 60;
  const auto region = SharedRegion::Create(bytes);
  EXPECT_TRUE(absl::IsResourceExhausted(region.status()));
  EXPECT_NE(std::string(region.status().message()).find(std::to_string(bytes)),
            std::string::npos);
}

// So whatever kills the process, at whatever moment, leaves nothing behind.
TEST(SharedRegionTest, NoFileOfItHasAName) {
  const auto region = SharedRegion::Create(4096);
  ASSERT_TRUE(region.ok()) << region.status();
  const auto view = SharedRegionView::Map((*region)->key());
  ASSERT_TRUE(view.ok()) << view.status();
  std::ifstream maps("/proc/self/maps");
  int num_mappings = 0;
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("/dev/shm"), std::string::npos) << line;
    if (line.find("/memfd:baton-kv-") == std::string::npos) continue;
    ++num_mappings;
    EXPECT_NE(line.find(" (deleted)"), std::string::npos) << line;
  }
  EXPECT_EQ(num_mappings, 2);
}

}  // namespace
}  // namespace baton
