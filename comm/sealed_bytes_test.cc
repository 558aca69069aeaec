#include "comm/sealed_bytes.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(SealedBytesTest, ThePayloadComesOutAsItWentIn) {
  EXPECT_EQ(UnsealBytes(SealBytes("payload")), "payload");
  EXPECT_EQ(UnsealBytes(SealBytes("")), "");
}

TEST(SealedBytesTest, EveryChangedByteAndEveryTruncationIsFound) {
  const std::string sealed = SealBytes("a worker's address");
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string damaged = sealed;
    damaged[i] ^= 1;
    EXPECT_FALSE(UnsealBytes(damaged).has_value()) << i;
    EXPECT_FALSE(UnsealBytes(sealed.substr(0, i)).has_value()) << i;
  }
  EXPECT_FALSE(UnsealBytes(sealed + "x").has_value());
}

}  // namespace
}  // namespace baton
