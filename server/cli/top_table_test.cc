#include "server/cli/top_table.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

using Words = std::vector<std::string>;

// Of each line its words; an empty line has none.
std::vector<Words> Lines(const std::vector<std::string>& endpoints,
                         const std::vector<WorkerSample>& before,
                         const std::vector<WorkerSample>& now) {
  std::vector<Words> lines;
  const std::string text = TopTables(endpoints, before, now);
  for (const auto line : absl::StrSplit(text, '\n')) {
    lines.push_back(absl::StrSplit(line, ' ', absl::SkipEmpty()));
  }
  lines.pop_back();
  return lines;
}

WorkerSample Unified() {
  WorkerSample sample = {.time = absl::UnixEpoch(), .is_serving = true};
  sample.info.set_role(v1::WORKER_ROLE_UNIFIED);
  sample.info.set_incarnation(1);
  v1::RankLoad& rank = *sample.load.add_ranks();
  rank.set_running_requests(3);
  rank.set_waiting_requests(4);
  rank.set_free_kv_blocks(5);
  rank.set_total_kv_blocks(20);
  rank.set_exported_kv_blocks(6);
  rank.set_importing_kv_blocks(7);
  return sample;
}

// What it is two seconds later.
WorkerSample Later(WorkerSample sample) {
  sample.time += absl::Seconds(2);
  v1::RankLoad& rank = *sample.load.mutable_ranks(0);
  rank.set_prefill_steps(rank.prefill_steps() + 1);
  rank.set_decode_steps(rank.decode_steps() + 50);
  rank.set_computed_prompt_tokens(rank.computed_prompt_tokens() + 300);
  rank.set_drawn_tokens(rank.drawn_tokens() + 111);
  sample.load.set_imported_kv_bytes(sample.load.imported_kv_bytes() +
                                    5'000'000);
  return sample;
}

WorkerSample InGroup() {
  WorkerSample sample = Unified();
  sample.info.set_role(v1::WORKER_ROLE_DECODE);
  *sample.load.add_ranks() = sample.load.ranks(0);
  v1::GroupLoad& group = *sample.load.mutable_group();
  group.set_epoch(7);
  group.set_is_formed(true);
  group.set_ep_size(64);
  group.set_rank_offset(8);
  group.set_votes(1000);
  group.set_vote_wait_seconds(50);
  return sample;
}

TEST(TopTableTest, OneLineAWorkerAndOneForAll) {
  const WorkerSample before = Unified();
  const auto lines = Lines({"a:1"}, {before}, {Later(before)});
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_THAT(lines[0], ElementsAre("WORKER", "ROLE", "STATE", "RANK", "RUN",
                                    "WAIT", "FREE", "BLOCKS", "EXPORTED",
                                    "IMPORTING", "PREFILL/S", "DECODE/S",
                                    "PROMPT/S", "TOKENS/S", "KV_MB/S"));
  EXPECT_THAT(lines[1],
              ElementsAre("a:1", "unified", "serving", "0", "3", "4", "5", "20",
                          "6", "7", "0.5", "25.0", "150", "55.5", "2.5"));
  EXPECT_THAT(lines[2],
              ElementsAre("total", "-", "1/1", "1", "3", "4", "5", "20", "6",
                          "7", "-", "-", "150", "55.5", "2.5"));
}

TEST(TopTableTest, ColumnsAreAligned) {
  const std::string text =
      TopTables({"a:1", "a-longer-name:1"}, {}, {Unified(), Unified()});
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(4));
  for (const std::string& line : lines) {
    EXPECT_EQ(line.size(), lines[0].size()) << line;
  }
}

TEST(TopTableTest, WithoutAnEarlierLookThereAreNoRates) {
  const auto lines = Lines({"a:1"}, {}, {Unified()});
  for (const Words& line : {lines[1], lines[2]}) {
    EXPECT_EQ(Words(line.begin() + 10, line.end()), Words(5, "-"));
  }
}

TEST(TopTableTest, AnotherProcessAtTheSameAddressHasNoRates) {
  WorkerSample now = Later(Unified());
  now.info.set_incarnation(2);
  const auto lines = Lines({"a:1"}, {Unified()}, {now});
  EXPECT_EQ(Words(lines[1].begin() + 10, lines[1].end()), Words(5, "-"));
}

TEST(TopTableTest, AWorkerThatDoesNotAnswerIsALineThatSaysSo) {
  const std::vector<std::pair<absl::Status, std::string>> states = {
      {absl::UnavailableError(""), "unreachable"},
      {absl::DeadlineExceededError(""), "no-answer"},
      {absl::UnimplementedError(""), "no-worker"},
      {absl::InternalError(""), "INTERNAL"}};
  for (const auto& [status, state] : states) {
    WorkerSample gone;
    gone.status = status;
    const WorkerSample here = Unified();
    const auto lines = Lines({"a:1", "b:2"}, {here, here}, {gone, Later(here)});
    ASSERT_THAT(lines, SizeIs(4));
    EXPECT_THAT(lines[1], SizeIs(lines[0].size()));
    EXPECT_EQ(Words(lines[1].begin(), lines[1].begin() + 4),
              (Words{"a:1", "-", state, "-"}));
    EXPECT_EQ(lines[2][13], "55.5") << "the other's";
    EXPECT_EQ(lines[3][2], "1/2");
  }
}

TEST(TopTableTest, TellsServingFromForming) {
  WorkerSample sample = InGroup();
  EXPECT_EQ(Lines({"a:1"}, {}, {sample})[1][2], "serving");
  sample.is_serving = false;
  EXPECT_EQ(Lines({"a:1"}, {}, {sample})[1][2], "not-serving");
  sample.load.mutable_group()->set_is_formed(false);
  EXPECT_EQ(Lines({"a:1"}, {}, {sample})[1][2], "forming");
}

TEST(TopTableTest, RanksHaveTheirNumbersInTheGroupAndKvIsTheProcesss) {
  const WorkerSample before = InGroup();
  const auto lines = Lines({"a:1"}, {before}, {Later(before)});
  EXPECT_EQ(lines[1][3], "8");
  EXPECT_EQ(lines[2][3], "9");
  EXPECT_EQ(lines[1].back(), "2.5");
  EXPECT_EQ(lines[2].back(), "-");
  EXPECT_EQ(lines[3][3], "2") << "ranks in all";
  EXPECT_EQ(lines[3][4], "6") << "running requests in all";
}

TEST(TopTableTest, AGroupsVotesAreALineAProcess) {
  const WorkerSample before = InGroup();
  WorkerSample now = Later(before);
  v1::GroupLoad& group = *now.load.mutable_group();
  group.set_decode_steps(90);
  group.set_all_prefills(4);
  group.set_any_prefills(5);
  group.set_unopposed_prefills(1);
  group.set_prefill_fallbacks(2);
  group.set_empty_rank_steps(3);
  group.set_votes(1100);
  group.set_vote_wait_seconds(50.25);
  group.set_exposed_vote_wait_seconds(0.004);
  group.set_expert_load_steps(10);
  group.set_expert_load_ratio_sum(12.04);
  group.set_dropped_messages(6);
  group.set_epochs_ended(7);
  group.set_watchdog_firings(8);
  const auto lines =
      Lines({"b:2", "a:1"}, {Unified(), before}, {Later(Unified()), now});
  ASSERT_THAT(lines, SizeIs(8));
  EXPECT_THAT(lines[5], SizeIs(0));
  EXPECT_THAT(lines[6],
              ElementsAre("WORKER", "RANKS", "EPOCH", "STEPS/S", "ALL", "ANY",
                          "UNOPPOSED", "FALLBACKS", "EMPTY", "VOTE", "EXPOSED",
                          "BALANCE", "DROPPED", "ENDED", "WATCHDOG"));
  EXPECT_THAT(lines[7],
              ElementsAre("a:1", "8-9/64", "7", "50.0", "4", "5", "1", "2", "3",
                          "2.5ms", "40us", "1.20", "6", "7", "8"));
}

TEST(TopTableTest, AGroupWithoutVotesMeanwhileHasNoMeanWait) {
  const WorkerSample before = InGroup();
  const auto line = Lines({"a:1"}, {before}, {Later(before)}).back();
  EXPECT_EQ(line[9], "-");
  EXPECT_EQ(line[10], "-");
  EXPECT_EQ(line[11], "-");
}

}  // namespace
}  // namespace baton
