#include "engine/step_history.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

const absl::Time kStart = absl::UnixEpoch();

std::vector<std::string> LinesOf(const StepHistory& history, absl::Time now) {
  return absl::StrSplit(history.Lines(now), '\n', absl::SkipEmpty());
}

// Planned from `start` on for 1 ms.
void Launch(uint64_t step, absl::Time start, StepHistory* history) {
  SchedulerOutput plan;
  plan.step = StepId(step);
  plan.type = step == 1 ? StepType::kPrefill : StepType::kDecode;
  plan.rows.resize(2);
  plan.num_rows = 7;
  history->OnLaunch(plan, start, start + absl::Milliseconds(1));
}

StepOutput Output(absl::Time start, absl::Time end) {
  StepOutput output;
  output.num_rows = 5;
  output.device_start = start;
  output.device_end = end;
  return output;
}

TEST(StepHistoryTest, BeforeTheFirstStepThereIsNoLine) {
  EXPECT_EQ(StepHistory().Lines(kStart), "");
}

TEST(StepHistoryTest, TellsWhatIsDoneFromWhatIsInFlight) {
  StepHistory history;
  Launch(1, kStart, &history);
  Launch(2, kStart + absl::Milliseconds(1), &history);
  history.OnDone(
      StepId(1),
      Output(kStart + absl::Milliseconds(2), kStart + absl::Milliseconds(10)),
      1, kStart + absl::Milliseconds(12));
  EXPECT_THAT(
      LinesOf(history, kStart + absl::Seconds(5)),
      ElementsAre("step 1 prefill rows 5 sequences 2 planned in 1ms launched "
                  "4.999s ago done after 11ms device 8ms",
                  "step 2 decode rows 7 sequences 2 planned in 1ms launched "
                  "4.998s ago in flight"));
}

TEST(StepHistoryTest, NamesAStepThatTheGroupsEndAbandoned) {
  StepHistory history;
  Launch(1, kStart, &history);
  StepOutput output = Output(kStart, kStart);
  output.abandoned = true;
  history.OnDone(StepId(1), output, 3, kStart);
  EXPECT_THAT(history.Lines(kStart), EndsWith(" abandoned\n"));
  EXPECT_EQ(history.counts().prefill_steps + history.counts().tokens, 0u);
}

TEST(StepHistoryTest, CountsWhatIsDone) {
  StepHistory history;
  for (uint64_t step = 1; step <= 3; ++step) {
    Launch(step, kStart, &history);
    history.OnDone(StepId(step), Output(kStart, kStart), 2, kStart);
  }
  Launch(4, kStart, &history);
  EXPECT_EQ(history.counts().prefill_steps, 1u);
  EXPECT_EQ(history.counts().decode_steps, 2u);
  EXPECT_EQ(history.counts().prefill_rows, 5u);
  EXPECT_EQ(history.counts().tokens, 6u);
}

TEST(StepHistoryTest, KeepsTheNewest64) {
  StepHistory history;
  for (uint64_t step = 1; step <= StepHistory::kSteps + 3; ++step) {
    Launch(step, kStart, &history);
    if (step == StepHistory::kSteps + 3) break;
    history.OnDone(StepId(step), Output(kStart, kStart), 2, kStart);
  }
  const auto lines = LinesOf(history, kStart);
  ASSERT_THAT(lines, SizeIs(64));
  EXPECT_THAT(lines.front(), StartsWith("step 4 "));
  EXPECT_THAT(lines[62], HasSubstr("step 66 decode rows 5"));
  EXPECT_THAT(lines.back(), StartsWith("step 67 decode rows 7"));
}

TEST(StepHistoryTest, TheOldestStepIsThatInFlightWhichTheDeviceIsAt) {
  StepHistory history;
  EXPECT_FALSE(history.Oldest().has_value());
  Launch(1, kStart, &history);
  Launch(2, kStart + absl::Milliseconds(1), &history);
  EXPECT_EQ(history.Oldest()->id, StepId(1));
  EXPECT_EQ(history.Oldest()->since, kStart + absl::Milliseconds(1));
  const absl::Time done = kStart + absl::Milliseconds(12);
  history.OnDone(StepId(1), Output(kStart, done), 1, done);
  EXPECT_EQ(history.Oldest()->id, StepId(2));
  EXPECT_EQ(history.Oldest()->since, done) << "it waited for the one ahead";
  history.OnDone(StepId(2), Output(done, done), 1, done);
  EXPECT_FALSE(history.Oldest().has_value());
  Launch(3, done, &history);
  EXPECT_EQ(history.Oldest()->since, done + absl::Milliseconds(1));
}

TEST(StepHistoryTest, APredictionScalesWithRowsFromTheNewestStepOfItsType) {
  StepHistory history;
  Launch(2, kStart, &history);
  EXPECT_EQ(history.Oldest()->predicted, absl::ZeroDuration());
  history.OnDone(StepId(2), Output(kStart, kStart + absl::Milliseconds(10)), 1,
                 kStart + absl::Milliseconds(10));
  Launch(1, kStart, &history);
  EXPECT_EQ(history.Oldest()->predicted, absl::ZeroDuration())
      << "a prefill step is another type";
  StepOutput abandoned;
  abandoned.abandoned = true;
  history.OnDone(StepId(1), abandoned, 0, kStart);
  Launch(3, kStart, &history);  // 7 rows, against 5.
  const absl::Duration off =
      history.Oldest()->predicted - absl::Milliseconds(14);
  EXPECT_LT(absl::AbsDuration(off), absl::Microseconds(1));
}

}  // namespace
}  // namespace baton
