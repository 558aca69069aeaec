#include "server/router/windowed_count.h"

#include <deque>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace baton {
namespace {

absl::Time At(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TEST(WindowedCountTest, ForgetsWhatIsOlderThanTheWindow) {
  WindowedCount count(absl::Seconds(10));
  EXPECT_EQ(count.Sum(At(0)), 0);
  count.Add(At(0), 3);
  count.Add(At(5.5), 4);
  EXPECT_EQ(count.Sum(At(9)), 7);
  EXPECT_EQ(count.Sum(At(10)), 4);
  EXPECT_EQ(count.Sum(At(14.9)), 4);
  EXPECT_EQ(count.Sum(At(15.6)), 0);
}

TEST(WindowedCountTest, ForgetsAllAfterALongSilence) {
  WindowedCount count(absl::Seconds(10));
  for (int i = 0; i < 20; ++i) count.Add(At(i), 1);
  EXPECT_EQ(count.Sum(At(1e6)), 0);
  count.Add(At(1e6), 2);
  EXPECT_EQ(count.Sum(At(1e6)), 2);
}

TEST(WindowedCountTest, ForgetsAllWhenItIsTold) {
  WindowedCount count(absl::Seconds(10));
  count.Add(At(3), 2);
  count.Clear();
  EXPECT_EQ(count.Sum(At(3)), 0);
}

TEST(WindowedCountTest, CountsBetweenNineTenthsAndAllOfTheWindow) {
  std::mt19937_64 random(5);
  WindowedCount count(absl::Seconds(10));
  std::deque<std::pair<double, int64_t>> all;
  double now = 0;
  for (int i = 0; i < 2000; ++i) {
    now += static_cast<double>(random() % 100) / 40;
    const auto added = static_cast<int64_t>(random() % 5);
    count.Add(At(now), added);
    all.emplace_back(now, added);
    int64_t least = 0;
    int64_t most = 0;
    for (const auto& [when, number] : all) {
      if (when > now - 9) least += number;
      if (when > now - 10) most += number;
    }
    ASSERT_GE(count.Sum(At(now)), least) << now;
    ASSERT_LE(count.Sum(At(now)), most) << now;
  }
}

}  // namespace
}  // namespace baton
