#include "base/random.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(RandomBitsTest, FillsBothHalvesAndDoesNotRepeat) {
  uint64_t seen = 0;
  const uint64_t first = RandomBits();
  for (int i = 0; i < 64; ++i) {
    const uint64_t bits = RandomBits();
    EXPECT_NE(bits, first);
    seen |= bits;
  }
  EXPECT_EQ(seen, ~uint64_t{0});  // One bit stays 0 once in 2^64.
}

}  // namespace
}  // namespace baton
