#include "server/edge/flag_value.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

const FlagSpec kFree = {.name = "f", .help = ""};

// `text` read and written again; what is wrong with it otherwise.
template <typename T>
std::string RoundTrip(const std::string& text, const FlagSpec& spec = kFree) {
  T value = {};
  const absl::Status status = ParseFlagValue(text, spec, &value);
  return status.ok() ? FormatFlagValue(&value) : std::string(status.message());
}

TEST(FlagValueTest, EveryTypeIsReadAndWritten) {
  EXPECT_EQ(RoundTrip<bool>("1"), "true");
  EXPECT_EQ(RoundTrip<bool>("false"), "false");
  EXPECT_EQ(RoundTrip<int32_t>("-5"), "-5");
  EXPECT_EQ(RoundTrip<uint32_t>("4294967295"), "4294967295");
  EXPECT_EQ(RoundTrip<uint64_t>("18446744073709551615"),
            "18446744073709551615");
  EXPECT_EQ(RoundTrip<double>("0.25"), "0.25");
  EXPECT_EQ(RoundTrip<std::string>("a b"), "a b");
  EXPECT_EQ(RoundTrip<absl::Duration>("90s"), "1m30s");
  EXPECT_EQ(RoundTrip<std::vector<std::string>>("a, b,,c"), "a,b,c");
  EXPECT_EQ(RoundTrip<std::optional<uint32_t>>("7"), "7");
}

TEST(FlagValueTest, AnItemMayHaveACommaAndWhereItMattersSpaces) {
  std::vector<std::string> list;
  const auto parse = [&list](const std::string& text, bool exact) {
    return ParseFlagValue(text, {.name = "f", .help = "", .exact_items = exact},
                          &list);
  };
  ASSERT_TRUE(parse("\\, a,b\\,\\,", true).ok());
  EXPECT_EQ(list, (std::vector<std::string>{", a", "b,,"}));
  EXPECT_EQ(FormatFlagValue(&list), "\\, a,b\\,\\,");
  ASSERT_TRUE(parse(" a , b\\c", true).ok());
  EXPECT_EQ(list, (std::vector<std::string>{" a ", " b\\c"}));
  ASSERT_TRUE(parse(" a ,", false).ok());
  EXPECT_EQ(list, std::vector<std::string>{"a"});
  for (const char* bad : {"", ",", "a,", "a,,b"}) {
    EXPECT_EQ(parse(bad, true).message(),
              "has an empty item; a comma in one is written \\,")
        << bad;
  }
}

TEST(FlagValueTest, BytesHaveBinaryUnits) {
  EXPECT_EQ(RoundTrip<ByteSize>("0"), "0");
  EXPECT_EQ(RoundTrip<ByteSize>("1023"), "1023");
  EXPECT_EQ(RoundTrip<ByteSize>("2048"), "2KiB");
  EXPECT_EQ(RoundTrip<ByteSize>("1536MiB"), "1536MiB");
  EXPECT_EQ(RoundTrip<ByteSize>("1024MiB"), "1GiB");
  for (const char* bad : {"1GB", "GiB", "-1", "1.5GiB", "17179869184GiB", ""}) {
    EXPECT_EQ(RoundTrip<ByteSize>(bad),
              "not a number of bytes such as 1048576, 512MiB or 4GiB")
        << bad;
  }
}

TEST(FlagValueTest, AnEmptyOptionalIsNoText) {
  std::optional<uint32_t> absent;
  EXPECT_EQ(FormatFlagValue(&absent), "");
}

TEST(FlagValueTest, BoundsAreInclusiveAndSaidInFull) {
  const FlagSpec both = {.name = "f", .help = "", .min = 1, .max = 1000000000};
  EXPECT_EQ(RoundTrip<uint32_t>("1", both), "1");
  EXPECT_EQ(RoundTrip<uint32_t>("1000000000", both), "1000000000");
  EXPECT_EQ(RoundTrip<uint32_t>("0", both), "must be 1 .. 1000000000");
  EXPECT_EQ(RoundTrip<uint32_t>("0", {.name = "f", .help = "", .min = 1}),
            "must be at least 1");
  EXPECT_EQ(RoundTrip<double>("3", {.name = "f", .help = "", .max = 2.5}),
            "must be at most 2.5");
  EXPECT_EQ(
      RoundTrip<absl::Duration>("2s", {.name = "f", .help = "", .max = 1}),
      "must be at most 1");
}

TEST(FlagValueTest, AnAddressHasAHostAndAPort) {
  for (const char* good : {"127.0.0.1:0", "0.0.0.0:65535", "localhost:80",
                           "[::1]:5", "[::]:0", "a-b.c:1"}) {
    EXPECT_TRUE(CheckHostPort(good).ok()) << good;
  }
  for (const char* bad : {"",
                          ":",
                          "foo",
                          "127.0.0.1",
                          "127.0.0.1:",
                          ":80",
                          "127.0.0.1:65536",
                          "127.0.0.1:99999",
                          "h:4294967297",
                          "h:-1",
                          "h:+1",
                          "h: 1",
                          "h:1 ",
                          "h:1s",
                          "h:x",
                          "::1:5",
                          "[::1]",
                          "[]:5",
                          "[::1:5",
                          "a:1,b:2"}) {
    EXPECT_EQ(CheckHostPort(bad).message(),
              "must be host:port with a port of 0 .. 65535")
        << bad;
  }
}

TEST(FlagValueTest, ASwitchAndAListAreKnownByTheirType) {
  bool on = false;
  std::optional<bool> maybe;
  std::vector<std::string> list;
  std::string text;
  EXPECT_EQ(ArityOf(&on), FlagArity::kSwitch);
  EXPECT_EQ(ArityOf(&maybe), FlagArity::kSwitch);
  EXPECT_EQ(ArityOf(&list), FlagArity::kList);
  EXPECT_EQ(ArityOf(&text), FlagArity::kOne);
  EXPECT_EQ(TypeName(&on), "");
  EXPECT_EQ(TypeName(&text), "TEXT");
}

}  // namespace
}  // namespace baton
