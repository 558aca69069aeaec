#include "comm/host_port.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(HostPortTest, NamesAndAddressesAreReadAndWritten) {
  for (const char* text : {"localhost:0", "10.0.0.1:65535", "[::1]:7480",
                           "leader-0.group.default:7480"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.has_value()) << text;
    EXPECT_EQ(FormatHostPort(*parsed), text);
  }
  EXPECT_EQ(ParseHostPort("[fe80::1]:9")->host, "fe80::1");
  EXPECT_EQ(ParseHostPort("[fe80::1]:9")->port, 9);
}

TEST(HostPortTest, AllElseIsRefused) {
  for (const char* text :
       {"", ":", ":1", "host", "host:", "host:65536", "host:1x", "host:-1",
        "host:000001", "::1:7", "[]:7", "[::1]", "a b:7", "a,b:7"}) {
    EXPECT_FALSE(ParseHostPort(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace baton
