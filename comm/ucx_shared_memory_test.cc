#include "comm/ucx_shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/logging.h"

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

}  // namespace
}  // namespace baton
