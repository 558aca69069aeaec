#include "comm/wire.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(WireTest, WhatWasWrittenIsReadBack) {
  const std::string bytes = WireWriter()
                                .Int(uint8_t{7})
                                .Int(uint64_t{1} << 40)
                                .Bytes("middle")
                                .Int(uint16_t{9})
                                .Take();
  EXPECT_EQ(bytes.size(), 1u + 8 + 4 + 6 + 2);
  WireReader in(bytes);
  EXPECT_EQ(in.Int<uint8_t>(), 7);
  EXPECT_EQ(in.Int<uint64_t>(), uint64_t{1} << 40);
  EXPECT_EQ(in.Bytes(), "middle");
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.Int<uint16_t>(), 9);
  EXPECT_TRUE(in.done());
}

TEST(WireTest, AClaimedLengthBeyondTheEndIsAFailure) {
  WireReader in(std::string_view("\xff\xff\xff\xff..", 6));
  EXPECT_EQ(in.Bytes(), "");
  EXPECT_FALSE(in.done());
}

TEST(WireTest, AfterAFailureNothingIsReadThatWouldFit) {
  WireReader in(std::string_view("\x01\x02\x03", 3));
  EXPECT_EQ(in.Int<uint32_t>(), 0u);
  EXPECT_EQ(in.Int<uint8_t>(), 0u);
  EXPECT_FALSE(in.done());
}

}  // namespace
}  // namespace baton
