#include "comm/group_layout.h"

#include <gtest/gtest.h>

#include "base/field_error.h"

namespace baton {
namespace {

LeaderWorkerSet Lws(const char* address, const char* size, const char* index) {
  return {.leader_address = address, .group_size = size, .worker_index = index};
}

TEST(GroupLayoutTest, OneProcessHostsAllRanksIfNothingIsSaid) {
  const auto one = ResolveGroupLayout({}, {}).value();
  EXPECT_EQ(one.ep_size, 1u);
  EXPECT_EQ(one.leader, "");
  const auto eight = ResolveGroupLayout({.local_ranks = 8}, {}).value();
  EXPECT_EQ(eight.ep_size, 8u);
  EXPECT_EQ(eight.rank_offset, 0u);
  EXPECT_EQ(eight.leader, "");
}

TEST(GroupLayoutTest, FlagsSayAllOfIt) {
  const auto layout = ResolveGroupLayout({.ep_size = 64,
                                          .local_ranks = 16,
                                          .rank_offset = 48,
                                          .leader = "10.0.0.1:4000"},
                                         {})
                          .value();
  EXPECT_EQ(layout.ep_size, 64u);
  EXPECT_EQ(layout.local_ranks, 16u);
  EXPECT_EQ(layout.rank_offset, 48u);
  EXPECT_EQ(layout.leader, "10.0.0.1:4000");
}

TEST(GroupLayoutTest, ALeaderWorkerSetSaysAllButTheLocalRanks) {
  const auto layout =
      ResolveGroupLayout({.local_ranks = 8}, Lws("g-0.g.default", "4", "3"))
          .value();
  EXPECT_EQ(layout.ep_size, 32u);
  EXPECT_EQ(layout.rank_offset, 24u);
  EXPECT_EQ(layout.leader, "g-0.g.default:7480");
}

TEST(GroupLayoutTest, TheLeadersPortOrAllOfItsAddressComesFromTheFlag) {
  const auto lws = Lws("g-0.g", "2", "1");
  EXPECT_EQ(ResolveGroupLayout({.leader = ":9"}, lws)->leader, "g-0.g:9");
  EXPECT_EQ(ResolveGroupLayout({.leader = "a:9"}, lws)->leader, "a:9");
  EXPECT_EQ(ResolveGroupLayout({}, Lws("fd00::1", "2", "1"))->leader,
            "[fd00::1]:7480");
}

TEST(GroupLayoutTest, FlagsThatAgreeWithTheVariablesAreFine) {
  EXPECT_TRUE(
      ResolveGroupLayout({.ep_size = 8, .local_ranks = 4, .rank_offset = 4},
                         Lws("g", "2", "1"))
          .ok());
}

TEST(GroupLayoutTest, ZeroLocalRanksAreThisProcesssShare) {
  const GroupFlags flags = {.ep_size = 64, .local_ranks = 0};
  EXPECT_EQ(ResolveGroupLayout(flags, {})->local_ranks, 64u);
  const auto third = ResolveGroupLayout(flags, Lws("g", "4", "2")).value();
  EXPECT_EQ(third.local_ranks, 16u);
  EXPECT_EQ(third.rank_offset, 32u);
  EXPECT_EQ(ResolveGroupLayout({.local_ranks = 0}, Lws("g", "4", "2"))->ep_size,
            4u);
}

struct BadCase {
  GroupFlags flags;
  LeaderWorkerSet lws;
  const char* field;
  const char* words;
};

class BadGroupLayoutTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadGroupLayoutTest, TheErrorNamesTheFlag) {
  const auto layout = ResolveGroupLayout(GetParam().flags, GetParam().lws);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(ErrorField(layout.status()), GetParam().field) << layout.status();
  EXPECT_NE(layout.status().ToString().find(GetParam().words),
            std::string::npos)
      << layout.status();
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadGroupLayoutTest,
    ::testing::Values(
        BadCase{{.ep_size = 0}, {}, "ep_size", "1 .. 1024"},
        BadCase{{.local_ranks = 1025}, {}, "local_ranks", "1 .. 1024"},
        BadCase{{.ep_size = 7, .local_ranks = 0},
                Lws("g", "2", "0"),
                "ep_size",
                "7 does not divide by LWS_GROUP_SIZE=2"},
        BadCase{{.ep_size = 1025}, {}, "ep_size", "1 .. 1024"},
        BadCase{{.ep_size = 6, .local_ranks = 4, .leader = "h:1"},
                {},
                "ep_size",
                "6 is no multiple of --local_ranks, 4"},
        BadCase{
            {.ep_size = 8, .local_ranks = 4, .rank_offset = 2, .leader = "h:1"},
            {},
            "rank_offset",
            "2 is no multiple of --local_ranks, 4"},
        BadCase{
            {.ep_size = 8, .local_ranks = 4, .rank_offset = 8, .leader = "h:1"},
            {},
            "rank_offset",
            "8 is not below --ep_size, 8"},
        BadCase{{.ep_size = 2}, {}, "leader", "is needed"},
        BadCase{{.ep_size = 2, .leader = ":9"}, {}, "leader", "no host"},
        BadCase{{.ep_size = 2, .leader = "h:0"}, {}, "leader", "'h:0'"},
        BadCase{{.ep_size = 2, .leader = "h"}, {}, "leader", "host:port"},
        BadCase{{.leader = ":x"}, Lws("g", "2", "0"), "leader", "'g:x'"},
        BadCase{{}, Lws("g", "many", "0"), "LWS_GROUP_SIZE", "'many'"},
        BadCase{{}, Lws("g", "0", "0"), "LWS_GROUP_SIZE", "1 .. 1024"},
        BadCase{{},
                {.leader_address = "g", .group_size = "2"},
                "LWS_WORKER_INDEX",
                "is missing"},
        BadCase{{}, Lws("g", "2", "-1"), "LWS_WORKER_INDEX", "'-1'"},
        BadCase{{}, Lws("g", "2", ""), "LWS_WORKER_INDEX", "''"},
        BadCase{{}, Lws("g", "2", "2"), "rank_offset", "2 is not below"},
        BadCase{{.local_ranks = 1024},
                Lws("g", "2", "0"),
                "local_ranks",
                "more than 1024"},
        BadCase{{.ep_size = 16, .local_ranks = 4},
                Lws("g", "2", "0"),
                "ep_size",
                "16 contradicts LWS_GROUP_SIZE=2 with --local_ranks=4"},
        BadCase{{.rank_offset = 0},
                Lws("g", "2", "1"),
                "rank_offset",
                "0 contradicts LWS_WORKER_INDEX=1"}));

}  // namespace
}  // namespace baton
