#include "engine/rebalance_message.h"

#include <cstdint>
#include <string>
#include <vector>

#include "comm/step_vote.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<RebalanceMessage> OneOfEach() {
  return {{.kind = RebalanceKind::kLoads,
           .epoch = EpochId(3),
           .round = 2,
           .plan = 1,
           .layer = 7,
           .values = {1, 0, 4294967295u}},
          {.kind = RebalanceKind::kMove,
           .epoch = EpochId(3),
           .plan = 2,
           .placement = 5,
           .batch_end = 6,
           .plan_end = 9,
           .layer = 1,
           .values = {2, 1, 0}},
          {.kind = RebalanceKind::kFailed,
           .epoch = EpochId(3),
           .plan = 2,
           .placement = 4},
          {.kind = RebalanceKind::kAbandon,
           .epoch = EpochId(3),
           .plan = 2,
           .placement = 4}};
}

TEST(RebalanceMessageTest, ComesBackAsItWas) {
  for (const RebalanceMessage& message : OneOfEach()) {
    const std::string bytes = EncodeRebalance(message);
    EXPECT_EQ(bytes.size(), kRebalanceHeaderBytes + 4 * message.values.size());
    EXPECT_EQ(DecodeRebalance(bytes), message);
  }
}

TEST(RebalanceMessageTest, TheLargestFitsTheChannel) {
  RebalanceMessage message = OneOfEach().front();
  message.values.assign(kMaxRebalanceValues, 1);
  const std::string bytes = EncodeRebalance(message);
  EXPECT_LE(bytes.size(), GroupChannel::kMaxMessageBytes);
  EXPECT_EQ(DecodeRebalance(bytes), message);
}

TEST(RebalanceMessageTest, RefusesWhatIsCutOrLongerOrOfAnotherKind) {
  for (const RebalanceMessage& message : OneOfEach()) {
    const std::string bytes = EncodeRebalance(message);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(DecodeRebalance(bytes.substr(0, length)).has_value());
    }
    EXPECT_FALSE(DecodeRebalance(bytes + '\0').has_value());
    for (const size_t place : {0, 4, 5}) {  // Magic, version, kind.
      std::string other = bytes;
      other[place] = '\x77';
      EXPECT_FALSE(DecodeRebalance(other).has_value());
    }
  }
}

TEST(RebalanceMessageTest, RefusesFieldsThatAKindDoesNotHave) {
  for (const RebalanceMessage& good : OneOfEach()) {
    const bool loads = good.kind == RebalanceKind::kLoads;
    const bool moves = good.kind == RebalanceKind::kMove;
    std::vector<RebalanceMessage> bad(3, good);
    bad[0].round = loads ? 0 : 1;
    bad[1].batch_end = moves ? good.placement - 1 : 1;
    if (loads) {
      bad[2].placement = 1;
    } else if (moves) {
      bad[2].plan_end = 1;
    } else {
      bad[2].layer = 1;
    }
    for (const RebalanceMessage& message : bad) {
      EXPECT_FALSE(DecodeRebalance(EncodeRebalance(message)).has_value());
    }
  }
}

TEST(RebalanceMessageTest, VotesAreSomethingElse) {
  EXPECT_FALSE(DecodeRebalance(EncodeVote({})).has_value());
  for (const RebalanceMessage& message : OneOfEach()) {
    EXPECT_FALSE(DecodeVote(EncodeRebalance(message)).has_value());
  }
}

}  // namespace
}  // namespace baton
