#include "server/group_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;

class GroupMetricsTest : public ::testing::Test {
 protected:
  void Expect(const std::vector<std::string>& lines) const {
    const std::string text =
        prometheus::TextSerializer().Serialize(registry_.Collect());
    for (const std::string& line : lines) {
      EXPECT_THAT(text, HasSubstr("\nbaton_group_" + line + "\n"));
    }
  }

  prometheus::Registry registry_;
  GroupMetrics metrics_{
      &registry_, "decode", {.group = 64, .first = 16, .local = 8}};
};

TEST_F(GroupMetricsTest, StepsAreCountedWithWhatTheirVotesCost) {
  using enum VotedStep;
  using Cause = PrefillCause;
  metrics_.OnStep({.type = kPrefill, .cause = Cause::kAll, .empty_ranks = 1});
  metrics_.OnStep({.type = kPrefill, .cause = Cause::kAny});
  metrics_.OnStep({.type = kPrefill, .cause = Cause::kAny});
  metrics_.OnStep({.type = kPrefill, .cause = Cause::kUnopposed});
  metrics_.OnStep({.type = kDecode,
                   .fell_back = true,
                   .empty_ranks = 2,
                   .dropped_messages = 5,
                   .vote_wait = absl::Milliseconds(250),
                   .exposed_wait = absl::Milliseconds(125)});
  Expect({"steps_total{role=\"decode\",cause=\"all\",type=\"prefill\"} 1",
          "steps_total{role=\"decode\",cause=\"any\",type=\"prefill\"} 2",
          "steps_total{role=\"decode\",cause=\"unopposed\",type=\"prefill\"} 1",
          "steps_total{role=\"decode\",cause=\"\",type=\"decode\"} 1",
          "prefill_fallbacks_total{role=\"decode\"} 1",
          "empty_rank_steps_total{role=\"decode\"} 3",
          "dropped_messages_total{role=\"decode\"} 5",
          "vote_wait_seconds_count{role=\"decode\"} 5",
          "vote_wait_seconds_sum{role=\"decode\"} 0.25",
          "exposed_vote_wait_seconds_sum{role=\"decode\"} 0.125"});
}

TEST_F(GroupMetricsTest, APrefillThatFellBackToNothingIsNoStep) {
  metrics_.OnStep({.fell_back = true});
  Expect({"steps_total{role=\"decode\",cause=\"unopposed\",type=\"prefill\"} 0",
          "steps_total{role=\"decode\",cause=\"\",type=\"decode\"} 0",
          "prefill_fallbacks_total{role=\"decode\"} 1"});
}

TEST_F(GroupMetricsTest, TheGroupIsFormedBetweenAnEpochsStartAndItsEnd) {
  Expect({"formed{role=\"decode\"} 0", "epoch{role=\"decode\"} 0",
          "ranks{role=\"decode\"} 64", "local_ranks{role=\"decode\"} 8"});
  metrics_.OnEpochStarted(EpochId(7));
  Expect({"formed{role=\"decode\"} 1", "epoch{role=\"decode\"} 7"});
  metrics_.OnWatchdog();
  metrics_.OnEpochEnded();
  metrics_.OnDroppedMessage();
  Expect({"formed{role=\"decode\"} 0", "epoch{role=\"decode\"} 7",
          "epochs_ended_total{role=\"decode\"} 1",
          "watchdog_firings_total{role=\"decode\"} 1",
          "dropped_messages_total{role=\"decode\"} 1"});
}

TEST_F(GroupMetricsTest, GetLoadTellsTheSame) {
  metrics_.OnEpochStarted(EpochId(7));
  metrics_.OnEpochEnded();
  metrics_.OnEpochStarted(EpochId(8));
  metrics_.OnWatchdog();
  metrics_.OnStep({.type = VotedStep::kPrefill, .cause = PrefillCause::kAll});
  metrics_.OnStep({.type = VotedStep::kDecode,
                   .fell_back = true,
                   .empty_ranks = 3,
                   .dropped_messages = 4,
                   .vote_wait = absl::Milliseconds(250),
                   .exposed_wait = absl::Milliseconds(125)});
  const v1::GroupLoad load = metrics_.load();
  EXPECT_EQ(load.epoch(), 8u);
  EXPECT_TRUE(load.is_formed());
  EXPECT_EQ(load.ep_size(), 64u);
  EXPECT_EQ(load.rank_offset(), 16u);
  EXPECT_EQ(load.decode_steps(), 1u);
  EXPECT_EQ(load.all_prefills(), 1u);
  EXPECT_EQ(load.any_prefills() + load.unopposed_prefills(), 0u);
  EXPECT_EQ(load.prefill_fallbacks(), 1u);
  EXPECT_EQ(load.empty_rank_steps(), 3u);
  EXPECT_EQ(load.dropped_messages(), 4u);
  EXPECT_EQ(load.votes(), 2u);
  EXPECT_EQ(load.vote_wait_seconds(), 0.25);
  EXPECT_EQ(load.exposed_vote_wait_seconds(), 0.125);
  EXPECT_EQ(load.epochs_ended(), 1u);
  EXPECT_EQ(load.watchdog_firings(), 1u);
}

}  // namespace
}  // namespace baton
