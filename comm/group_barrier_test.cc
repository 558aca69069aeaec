#include "comm/group_barrier.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

using Arrivals = std::vector<GroupBarrierArrivals>;

void RunMembers(int num_members, const auto& body) {
  std::vector<std::thread> threads;
  for (int m = 0; m < num_members; ++m) {
    threads.emplace_back([&body, m] { body(m); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GroupBarrierTest, NobodyPassesBeforeAllHaveArrived) {
  for (const bool spins : {false, true}) {
    for (const int num_members : {1, 2, 3, 64}) {
      GroupBarrierState state = {};
      Arrivals arrivals(num_members);
      GroupBarrier barrier({.spins = spins}, &state, arrivals);
      const int kPhases = 200;
      // Plain memory: the barrier orders it.
      std::vector<int> values(num_members);
      int released = 0;
      RunMembers(num_members, [&](int member) {
        for (int phase = 1; phase <= kPhases; ++phase) {
          values[member] = phase;
          ASSERT_TRUE(barrier.Arrive(member, [&] { return ++released > 0; }));
          for (const int value : values) ASSERT_EQ(value, phase);
          ASSERT_EQ(released, phase);
          ASSERT_TRUE(barrier.Arrive(member));
        }
      });
    }
  }
}

TEST(GroupBarrierTest, EndWakesEveryoneAndStays) {
  GroupBarrierState state = {};
  Arrivals arrivals(4);
  GroupBarrier barrier({.deadline = absl::Minutes(1)}, &state, arrivals);
  EXPECT_TRUE(barrier.status().ok());
  RunMembers(4, [&](int member) {
    if (member == 3) {
      barrier.End();
    } else {
      EXPECT_FALSE(barrier.Arrive(member));
    }
  });
  EXPECT_FALSE(barrier.Arrive(3));
  EXPECT_EQ(barrier.status().code(), absl::StatusCode::kUnavailable);
}

TEST(GroupBarrierTest, TheLastToArriveMayEndIt) {
  GroupBarrierState state = {};
  Arrivals arrivals(3);
  GroupBarrier barrier({}, &state, arrivals);
  RunMembers(3, [&](int member) {
    EXPECT_FALSE(barrier.Arrive(member, [] { return false; }));
  });
  EXPECT_TRUE(barrier.ended());
}

TEST(GroupBarrierTest, ADeadlineEndsItAndNamesWhoIsMissing) {
  GroupBarrierState state = {};
  Arrivals arrivals(4);
  GroupBarrier barrier({.first_rank = 8, .deadline = absl::Milliseconds(50)},
                       &state, arrivals);
  RunMembers(4, [&](int member) { ASSERT_TRUE(barrier.Arrive(member)); });
  RunMembers(4, [&](int member) {
    if (member % 2 == 0) {
      EXPECT_FALSE(barrier.Arrive(member));
    }
  });
  const absl::Status status = barrier.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(std::string(status.message())
                .find("waited 50ms in exchange 2 of the group, without rank 9, "
                      "11"),
            std::string::npos)
      << status;
}

}  // namespace
}  // namespace baton
