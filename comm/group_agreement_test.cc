#include "comm/group_agreement.h"

#include <gtest/gtest.h>

#include <functional>

namespace baton {
namespace {

GroupMember Ranks(uint32_t offset, uint32_t count) {
  return {.rank_offset = offset, .local_ranks = count};
}

GroupHello Hello(uint32_t offset) {
  return {.fingerprint = "f1",
          .options = {{"kv_dtype", "f32"}, {"slots", "288"}},
          .ep_size = 64,
          .member = Ranks(offset, 16)};
}

TEST(GroupAgreementTest, RanksAreWrittenAsRanges) {
  EXPECT_EQ(FormatRanks(std::vector<uint32_t>{}), "none");
  EXPECT_EQ(FormatRanks(std::vector<uint32_t>{3}), "3");
  EXPECT_EQ(FormatRanks(std::vector<uint32_t>{0, 1, 2, 5, 8, 9}),
            "0..2 5 8..9");
  EXPECT_EQ(FormatRanks(Ranks(16, 16)), "16..31");
  EXPECT_EQ(FormatRanks(Ranks(7, 1)), "7");
}

TEST(GroupAgreementTest, RangesOverlapWhereTheyShareARank) {
  EXPECT_TRUE(Overlap(Ranks(0, 4), Ranks(3, 1)));
  EXPECT_TRUE(Overlap(Ranks(3, 1), Ranks(0, 4)));
  EXPECT_FALSE(Overlap(Ranks(0, 4), Ranks(4, 4)));
  EXPECT_FALSE(Overlap(Ranks(0xffffffff, 1), Ranks(0, 1)));
}

TEST(GroupAgreementTest, AGroupIsWholeWithoutGapOverlapOrExcess) {
  EXPECT_TRUE(IsWholeGroup(8, {Ranks(0, 2), Ranks(2, 6)}));
  EXPECT_FALSE(IsWholeGroup(8, {Ranks(0, 2), Ranks(3, 5)}));
  EXPECT_FALSE(IsWholeGroup(8, {Ranks(0, 4), Ranks(3, 5)}));
  EXPECT_FALSE(IsWholeGroup(8, {Ranks(0, 4), Ranks(4, 5)}));
  EXPECT_FALSE(IsWholeGroup(8, {Ranks(4, 4), Ranks(0, 4)}));
  EXPECT_FALSE(IsWholeGroup(8, {Ranks(0, 8), Ranks(8, 0)}));
  EXPECT_EQ(FindMissingRanks(8, {Ranks(0, 2), Ranks(5, 2)}),
            (std::vector<uint32_t>{2, 3, 4, 7}));
}

TEST(GroupAgreementTest, AMemberThatFitsIsWelcome) {
  EXPECT_FALSE(CheckHello(Hello(0), Hello(16)).has_value());
  EXPECT_FALSE(CheckHello(Hello(0), Hello(48)).has_value());
}

struct RefusedCase {
  const char* name;
  std::function<void(GroupHello*)> change;
  const char* field;
  const char* reason;
};

class RefusedHelloTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedHelloTest, TheFieldAndBothValuesAreNamed) {
  GroupHello hello = Hello(16);
  GetParam().change(&hello);
  const auto refused = CheckHello(Hello(0), hello);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->field, GetParam().field);
  EXPECT_EQ(refused->reason, GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedHelloTest,
    ::testing::Values(
        RefusedCase{"Option",
                    [](GroupHello* h) { h->options[0].value = "bf16"; },
                    "--kv_dtype",
                    "--kv_dtype is f32 on ranks 0..15 (the leader) and bf16 on "
                    "ranks 16..31"},
        RefusedCase{"OptionOfTheLeaderOnly",
                    [](GroupHello* h) { h->options.pop_back(); }, "--slots",
                    "--slots is 288 on ranks 0..15 (the leader) and unknown on "
                    "ranks 16..31"},
        RefusedCase{"OptionOfTheMemberOnly",
                    [](GroupHello* h) {
                      h->options.push_back({"new", "1"});
                    },
                    "--new",
                    "--new is unknown on ranks 0..15 (the leader) and 1 on "
                    "ranks 16..31"},
        RefusedCase{"Epoch",
                    [](GroupHello* h) { h->last_epoch = kMaxHelloEpoch + 1; },
                    "last_epoch", "last_epoch is more than any group had"},
        RefusedCase{"Unprintable",
                    [](GroupHello* h) { h->options[0].value = "a\nE b\x1b"; },
                    "--kv_dtype",
                    "--kv_dtype is f32 on ranks 0..15 (the leader) and a?E b? "
                    "on ranks 16..31"},
        RefusedCase{"Fingerprint", [](GroupHello* h) { h->fingerprint = "f2"; },
                    "fingerprint",
                    "fingerprint is f1 on ranks 0..15 (the leader) and f2 on "
                    "ranks 16..31"},
        RefusedCase{"EpSize", [](GroupHello* h) { h->ep_size = 32; },
                    "--ep_size",
                    "--ep_size is 64 on ranks 0..15 (the leader) and 32 on "
                    "ranks 16..31"},
        RefusedCase{"BeyondTheGroup",
                    [](GroupHello* h) { h->member = Ranks(56, 16); },
                    "--rank_offset",
                    "--rank_offset=56: ranks 56..71 are not all below "
                    "--ep_size=64"},
        RefusedCase{"OverTheLeader",
                    [](GroupHello* h) { h->member = Ranks(8, 16); },
                    "--rank_offset",
                    "--rank_offset=8: ranks 8..23 overlap ranks 0..15 of the "
                    "leader"},
        RefusedCase{"NoRanks", [](GroupHello* h) { h->member = Ranks(16, 0); },
                    "--local_ranks",
                    "--local_ranks=0 at --rank_offset=16 is no range of ranks"},
        RefusedCase{
            "Overflow",
            [](GroupHello* h) { h->member = Ranks(0xffffffff, 0xffffffff); },
            "--local_ranks",
            "--local_ranks=4294967295 at --rank_offset=4294967295 is no range "
            "of ranks"}),
    [](const auto& c) { return c.param.name; });

TEST(GroupAgreementTest, ARefusalOfTheLongestValuesCanBeSent) {
  GroupHello hello = Hello(16);
  hello.options.push_back({std::string(kMaxGroupTextBytes, 'n'),
                           std::string(kMaxGroupTextBytes, 'v')});
  const auto refused = CheckHello(Hello(0), hello);
  ASSERT_TRUE(refused.has_value());
  EXPECT_TRUE(DecodeGroupMessage(EncodeGroupMessage(*refused)).has_value());
}

}  // namespace
}  // namespace baton
