#include "server/load_pacer.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();
constexpr absl::Duration kTick = absl::Milliseconds(1);

TEST(LoadPacerTest, TellsTheFirstLoadAtOnce) {
  LoadPacer pacer(absl::Milliseconds(10));
  EXPECT_TRUE(pacer.Tell(kStart, 7));
  EXPECT_FALSE(pacer.Tell(kStart, 7));
}

TEST(LoadPacerTest, TellsAChangeNoSoonerThanTheIntervalAfterTheLastOne) {
  LoadPacer pacer(absl::Milliseconds(10));
  ASSERT_TRUE(pacer.Tell(kStart, 0));
  EXPECT_FALSE(pacer.Tell(kStart + absl::Milliseconds(10) - kTick, 1));
  EXPECT_EQ(pacer.NextTurn(1), kStart + absl::Milliseconds(10));
  EXPECT_TRUE(pacer.Tell(kStart + absl::Milliseconds(10), 2));
  EXPECT_FALSE(pacer.Tell(kStart + absl::Milliseconds(11), 3));
  EXPECT_TRUE(pacer.Tell(kStart + absl::Seconds(100), 3))
      << "long ago: a change is told at once";
}

TEST(LoadPacerTest, TellsTheSameLoadAgainAsASignOfLife) {
  LoadPacer pacer(absl::Milliseconds(10));
  ASSERT_TRUE(pacer.Tell(kStart, 0));
  EXPECT_EQ(pacer.NextTurn(0), kStart + kSignOfLifeInterval);
  EXPECT_FALSE(pacer.Tell(kStart + kSignOfLifeInterval - kTick, 0));
  EXPECT_TRUE(pacer.Tell(kStart + kSignOfLifeInterval, 0));
  EXPECT_LT(kSignOfLifeInterval, absl::Seconds(1)) << "as worker.proto says";
}

}  // namespace
}  // namespace baton
