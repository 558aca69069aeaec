#include "server/cli/token_timing.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

TEST(TokenTimingTest, GapsAreBetweenSuccessiveTokensAndZeroWithinAMessage) {
  const TokenTiming timing = MeasureTokens(
      At(100), At(170), {{At(120), 1}, {At(130), 0}, {At(150), 2}});
  EXPECT_EQ(timing.num_tokens, 3u);
  EXPECT_EQ(timing.ttft, absl::Milliseconds(20));
  EXPECT_EQ(timing.ttst, absl::Milliseconds(30));
  EXPECT_EQ(timing.e2e, absl::Milliseconds(70));
  EXPECT_EQ(timing.tpot, absl::Milliseconds(25));
  EXPECT_THAT(timing.itl,
              ElementsAre(absl::Milliseconds(30), absl::ZeroDuration()));
}

TEST(TokenTimingTest, GapsOfSamplesThatTakeTurnsAreEachOnesOwn) {
  const TokenTiming timing = MeasureTokens(
      At(0), At(60),
      {{At(20), 1, 1}, {At(25), 1, 0}, {At(40), 1, 1}, {At(60), 1, 1}});
  EXPECT_EQ(timing.num_tokens, 4u);
  EXPECT_EQ(timing.ttft, absl::Milliseconds(20)) << "of any";
  EXPECT_EQ(timing.ttst, absl::Milliseconds(20)) << "of the same";
  EXPECT_EQ(timing.tpot, absl::Milliseconds(20)) << "of the longest";
  EXPECT_THAT(timing.itl,
              ElementsAre(absl::Milliseconds(20), absl::Milliseconds(20)));
}

TEST(TokenTimingTest, OneTokenHasNoTimePerOutputToken) {
  const TokenTiming timing = MeasureTokens(At(0), At(9), {{At(5), 1}});
  EXPECT_EQ(timing.ttft, absl::Milliseconds(5));
  EXPECT_EQ(timing.tpot, absl::ZeroDuration());
  EXPECT_EQ(timing.ttst, absl::ZeroDuration());
  EXPECT_THAT(timing.itl, IsEmpty());
}

TEST(TokenTimingTest, NoTokensHaveNoFirstToken) {
  const TokenTiming timing = MeasureTokens(At(0), At(9), {{At(5), 0}});
  EXPECT_EQ(timing.num_tokens, 0u);
  EXPECT_EQ(timing.ttft, absl::ZeroDuration());
  EXPECT_EQ(timing.e2e, absl::Milliseconds(9));
}

}  // namespace
}  // namespace baton
