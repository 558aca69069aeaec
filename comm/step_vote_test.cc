#include "comm/step_vote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace baton {
namespace {

using enum VotePhase;

Ballot OneRank(bool wants_prefill, uint32_t decode_rows) {
  return {.num_ranks = 1,
          .num_wanting_prefill = wants_prefill ? 1u : 0u,
          .prefill_tokens = wants_prefill ? 10u : 0u,
          .decode_rows = decode_rows};
}

// A vote of one process for ranks that it is told of.
class StepVoteTest : public testing::Test {
 protected:
  // What becomes of the next step if these are the ballots.
  StepDecision Vote(const std::vector<Ballot>& ranks) {
    Ballot all;
    for (const Ballot& rank : ranks) all.Merge(rank);
    vote_.Post(all);
    return *vote_.Decide();
  }
  StepVote vote_{{.all_interval = 3, .any_interval = 5, .confirms = false}};
};

TEST(VotePhaseTest, MovesOnlyAlongTheTable) {
  const std::set<std::pair<VotePhase, VotePhase>> legal = {
      {kPosting, kCollecting},
      {kCollecting, kPosting},
      {kCollecting, kConfirming},
      {kConfirming, kPosting}};
  for (int from = 0; from < kNumVotePhases; ++from) {
    for (int to = 0; to < kNumVotePhases; ++to) {
      const std::pair edge(static_cast<VotePhase>(from),
                           static_cast<VotePhase>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge));
    }
  }
}

TEST(BallotTest, AMergeSumsWishesAndTakesTheWidestBounds) {
  Ballot all;
  all.Merge({.num_ranks = 2,
             .num_wanting_prefill = 1,
             .draining = true,
             .prefill_tokens = 7,
             .decode_rows = 3,
             .placement_version = 5});
  all.Merge({.num_ranks = 1,
             .prefill_is_overdue = true,
             .draining = true,
             .prefill_tokens = 2,
             .decode_rows = 9,
             .num_drafts = 4,
             .placement_version = 4});
  EXPECT_EQ(all, (Ballot{.num_ranks = 3,
                         .num_wanting_prefill = 1,
                         .prefill_is_overdue = true,
                         .draining = true,
                         .prefill_tokens = 7,
                         .decode_rows = 9,
                         .num_drafts = 4,
                         .placement_version = 4}));
  all.Merge({.num_ranks = 1, .placement_version = 9});
  EXPECT_FALSE(all.draining) << "one rank does not";
  EXPECT_EQ(all.placement_version, 4u);
}

TEST_F(StepVoteTest, AllMustWantAPrefillWhereNotAnyCounts) {
  const Ballot wants = OneRank(true, 1);
  const Ballot decodes = OneRank(false, 1);
  // Right at the start, and every third decode step: ALL.
  EXPECT_EQ(Vote({wants, wants}).type, VotedStep::kPrefill);
  EXPECT_EQ(Vote({wants, decodes}).type, VotedStep::kDecode);  // 0
  EXPECT_EQ(Vote({wants, wants}).type, VotedStep::kDecode);    // 1
  EXPECT_EQ(Vote({wants, wants}).type, VotedStep::kDecode);    // 2
  EXPECT_EQ(Vote({wants, decodes}).type, VotedStep::kDecode);  // 3: not all
  EXPECT_EQ(Vote({wants, wants}).type, VotedStep::kDecode);    // 4
  EXPECT_EQ(Vote({wants, decodes}).type, VotedStep::kPrefill)  // 5: ANY
      << vote_.History();
  EXPECT_EQ(vote_.decode_steps(), 0u);
}

TEST_F(StepVoteTest, AnOverduePromptMakesAnyStepAnAnyPoint) {
  Ballot overdue = OneRank(true, 0);
  overdue.prefill_is_overdue = true;
  const Ballot decodes = OneRank(false, 1);
  EXPECT_EQ(Vote({decodes, decodes}).type, VotedStep::kDecode);
  EXPECT_EQ(Vote({overdue, decodes}).type, VotedStep::kPrefill);
}

TEST_F(StepVoteTest, WithNothingToDecodeAPrefillWaitsForNoPoint) {
  const Ballot decodes = OneRank(false, 1);
  EXPECT_EQ(Vote({decodes, decodes}).type, VotedStep::kDecode);
  EXPECT_EQ(Vote({OneRank(true, 0), OneRank(false, 0)}).type,
            VotedStep::kPrefill);
}

TEST_F(StepVoteTest, ADecisionTellsWhoWantedItsPrefill) {
  const Ballot wants = OneRank(true, 1);
  const Ballot decodes = OneRank(false, 1);
  EXPECT_EQ(Vote({wants, wants}).cause, PrefillCause::kAll);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Vote({wants, decodes}).cause, PrefillCause::kNone);
  }
  EXPECT_EQ(Vote({wants, decodes}).cause, PrefillCause::kAny);
  EXPECT_EQ(Vote({OneRank(true, 0)}).cause, PrefillCause::kUnopposed);
}

TEST_F(StepVoteTest, WithNothingToDoThereIsNoStep) {
  EXPECT_EQ(Vote({OneRank(false, 0), OneRank(false, 0)}).type,
            VotedStep::kNone);
  EXPECT_EQ(vote_.phase(), kPosting);
  EXPECT_EQ(vote_.next(), StepId(2));
  EXPECT_FALSE(vote_.is_called());
}

TEST_F(StepVoteTest, BoundsAndPlacementAreOfAllRanks) {
  Ballot one = OneRank(false, 3);
  one.num_drafts = 2;
  one.placement_version = 7;
  Ballot other = OneRank(true, 1);
  other.placement_version = 6;
  const StepDecision decision = Vote({one, other});
  EXPECT_EQ(decision.decode_rows, 3u);
  EXPECT_EQ(decision.prefill_tokens, 10u);
  EXPECT_EQ(decision.num_drafts, 2u);
  EXPECT_EQ(decision.placement_version, 6u);
}

TEST(VoteMessageTest, SurvivesTheWireAndNothingElseDoes) {
  const VoteMessage message = {.epoch = EpochId(3),
                               .step = StepId(1u << 20),
                               .process = 5,
                               .is_confirmation = true,
                               .got_prefill = true,
                               .ballot = {.num_ranks = 4,
                                          .num_wanting_prefill = 2,
                                          .prefill_is_overdue = true,
                                          .draining = true,
                                          .prefill_tokens = 6,
                                          .decode_rows = 7,
                                          .num_drafts = 5,
                                          .placement_version = 8}};
  const std::string bytes = EncodeVote(message);
  EXPECT_EQ(DecodeVote(bytes), message);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeVote(bytes.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(DecodeVote(bytes + "x").has_value());
  for (size_t at = 0; at < 6; ++at) {  // Magic, version, flags.
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    EXPECT_FALSE(DecodeVote(bad).has_value()) << at;
  }
  VoteMessage impossible = message;
  impossible.ballot.num_wanting_prefill = 5;
  EXPECT_FALSE(DecodeVote(EncodeVote(impossible)).has_value());
}

TEST(VoteMessageTest, RandomBytesAreRefusedOrSurviveAgain) {
  std::mt19937_64 random(1);
  const std::string bytes =
      EncodeVote({.epoch = EpochId(1), .step = StepId(1), .process = 1});
  int accepted = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string bad = bytes;
    for (uint64_t flips = 1 + random() % 8; flips > 0; --flips) {
      bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    }
    const std::optional<VoteMessage> message = DecodeVote(bad);
    if (!message.has_value()) continue;
    ++accepted;
    EXPECT_EQ(EncodeVote(*message), bad);
  }
  EXPECT_GT(accepted, 1000) << "a number is as good as another";
}

TEST(StepVoteMessagesTest, WhatIsNotOfThisStepOrTheNextIsDroppedAndCounted) {
  StepVote vote({.epoch = EpochId(2), .num_processes = 3, .process = 0});
  const VoteMessage good = {.epoch = EpochId(2),
                            .step = StepId(1),
                            .process = 1,
                            .ballot = OneRank(false, 1)};
  EXPECT_TRUE(vote.OnMessage(good));
  EXPECT_FALSE(vote.OnMessage(good)) << "again";
  VoteMessage bad = good;
  bad.epoch = EpochId(1);
  EXPECT_FALSE(vote.OnMessage(bad)) << "an old epoch";
  bad = good;
  bad.process = 3;
  EXPECT_FALSE(vote.OnMessage(bad)) << "of nobody";
  bad.process = 0;
  EXPECT_FALSE(vote.OnMessage(bad)) << "in our name";
  bad = good;
  bad.step = StepId(3);
  EXPECT_FALSE(vote.OnMessage(bad)) << "early";
  bad.step = StepId(0);
  EXPECT_FALSE(vote.OnMessage(bad)) << "late";
  EXPECT_EQ(vote.num_dropped(), 6u);
  EXPECT_TRUE(vote.is_called());
  EXPECT_EQ(vote.Missing(), (std::vector<uint32_t>{0, 2}));
  vote.Post(OneRank(false, 1));
  EXPECT_EQ(vote.Decide(), std::nullopt);
  EXPECT_EQ(vote.Missing(), (std::vector<uint32_t>{2}));
}

TEST(StepVoteHistoryTest, HoldsTheNewestSixtyFourSteps) {
  StepVote vote({.confirms = false});
  for (int i = 0; i < 100; ++i) {
    vote.Post(OneRank(false, 1));
    ASSERT_TRUE(vote.Decide().has_value());
  }
  const std::string history = vote.History();
  EXPECT_EQ(std::count(history.begin(), history.end(), '\n'), 64);
  EXPECT_EQ(history.find("step 37 decode"), 0u) << history;
  EXPECT_NE(history.find("step 100 decode"), std::string::npos);
  EXPECT_NE(history.find("; ours: 0 of 1 ranks want prefill_tokens 0 "
                         "decode_rows 1 num_drafts 0 placement 0\n"),
            std::string::npos)
      << history;
}

// Processes that vote over a network with delays, and do what was decided.
class VotingGroup {
 public:
  VotingGroup(uint32_t num_processes, bool confirms, uint64_t seed)
      : random_(seed) {
    for (uint32_t i = 0; i < num_processes; ++i) {
      votes_.emplace_back(StepVoteOptions{.num_processes = num_processes,
                                          .process = i,
                                          .all_interval = 4,
                                          .any_interval = 6,
                                          .confirms = confirms});
    }
    decided_.resize(num_processes);
  }

  // Delivers a random message, or lets a random process do what it can.
  void Turn(bool someone_has_a_prompt, bool can_schedule_it) {
    const auto who = static_cast<uint32_t>(random_() % votes_.size());
    if (!messages_.empty() && random_() % 2 == 0) {
      const size_t at = random_() % messages_.size();
      std::swap(messages_[at], messages_.back());
      const auto [to, message] = messages_.back();
      if (random_() % 8 != 0) messages_.pop_back();  // Else it comes twice.
      votes_[to].OnMessage(message);
      return;
    }
    StepVote& vote = votes_[who];
    if (vote.phase() == kPosting) {
      Send(who, vote.Post(OneRank(someone_has_a_prompt && who == 0,
                                  static_cast<uint32_t>(random_() % 3))));
    } else if (vote.phase() == kCollecting) {
      const auto decision = vote.Decide();
      if (!decision.has_value()) return;
      if (decision->is_final) return Note(who, *decision);
      Send(who, vote.Confirm(can_schedule_it && who == 0));
    } else if (const auto settled = vote.Settle(); settled.has_value()) {
      Note(who, *settled);
    }
  }

  uint64_t steps() const { return agreed_.size(); }
  uint32_t prefills() const { return prefills_; }

 private:
  void Send(uint32_t from, const VoteMessage& message) {
    for (uint32_t to = 0; to < votes_.size(); ++to) {
      if (to != from)
        messages_.push_back({to, *DecodeVote(EncodeVote(message))});
    }
  }
  void Note(uint32_t who, const StepDecision& decision) {
    ASSERT_TRUE(decision.is_final);
    const auto [agreed, is_new] = agreed_.emplace(decision.step, decision);
    ASSERT_EQ(agreed->second, decision) << "process " << who;
    prefills_ += is_new && decision.type == VotedStep::kPrefill ? 1 : 0;
    ASSERT_EQ(decision.step.value(), ++decided_[who]) << "in order, each once";
  }

  std::mt19937_64 random_;
  std::vector<StepVote> votes_;
  std::deque<std::pair<uint32_t, VoteMessage>> messages_;
  std::map<StepId, StepDecision> agreed_;
  std::vector<uint64_t> decided_;
  uint32_t prefills_ = 0;
};

TEST(VotingGroupTest, AllDecideTheSameWhateverTheNetworkDoes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    VotingGroup group(1 + seed % 7, /*confirms=*/seed % 2 == 0, seed);
    for (int turn = 0; turn < 4000; ++turn) {
      group.Turn(turn % 500 < 250, turn % 3 == 0);
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
    }
    EXPECT_GT(group.steps(), 20u) << "seed " << seed;
  }
}

// A prompt that fits nowhere must not stop those that are being decoded: they
// would never end, and never make room for it.
TEST(VotingGroupTest, APrefillThatNobodyCanScheduleIsADecode) {
  VotingGroup group(3, /*confirms=*/true, 1);
  for (int turn = 0; turn < 20000; ++turn) group.Turn(true, false);
  EXPECT_GT(group.steps(), 100u);
  EXPECT_EQ(group.prefills(), 0u);
}

// The same without the second round: the vote is for a prefill each time.
TEST(VotingGroupTest, WithoutConfirmationItWouldBeAPrefillInVain) {
  VotingGroup group(3, /*confirms=*/false, 1);
  for (int turn = 0; turn < 20000; ++turn) group.Turn(true, false);
  EXPECT_GT(group.prefills(), 10u);
}

}  // namespace
}  // namespace baton
