#include "comm/group_barrier.h"

#include <gtest/gtest.h>

#include <atomic>
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

void ExpectOrder(int num_members, bool spins) {
  GroupBarrierState state = {};
  Arrivals arrivals(num_members);
  GroupBarrier barrier({.spins = spins}, &state, arrivals);
  const int kPhases = 200;
  // Plain memory: the barrier orders it.
  std::vector<int> values(num_members);
  RunMembers(num_members, [&](int member) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      values[member] = phase;
      ASSERT_TRUE(barrier.Arrive(member));
      for (const int value : values) ASSERT_EQ(value, phase);
      ASSERT_TRUE(barrier.Arrive(member));
    }
  });
}

TEST(GroupBarrierTest, NobodyPassesBeforeAllHaveArrived) {
  for (const int num_members : {1, 2, 3, 64}) {
    ExpectOrder(num_members, /*spins=*/false);
    ExpectOrder(num_members, /*spins=*/true);
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

TEST(GroupBarrierTest, AnotherThreadMayReleaseThoseWhoHaveArrived) {
  const int kMembers = 3;
  const int kPhases = 200;
  GroupBarrierState state = {};
  Arrivals arrivals(kMembers);
  GroupBarrier barrier({.deadline = absl::Minutes(1)}, &state, arrivals);
  std::atomic<int> all_here = 0;
  int released = 0;
  std::thread releaser([&] {
    for (int phase = 1; phase <= kPhases; ++phase) {
      while (all_here.load() < phase) std::this_thread::yield();
      released = phase;
      barrier.Release();
    }
  });
  RunMembers(kMembers, [&](int member) {
    for (int phase = 1; phase <= kPhases; ++phase) {
      ASSERT_TRUE(barrier.ArriveForRelease(member, [&] { ++all_here; }));
      ASSERT_EQ(released, phase);
      ASSERT_TRUE(barrier.Arrive(member));
    }
  });
  releaser.join();
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
  EXPECT_EQ(barrier.missing_ranks(), (std::vector<uint32_t>{9, 11}));
}

TEST(GroupBarrierTest, NobodyIsMissingFromWhatGoesOnOrWasToldToEnd) {
  GroupBarrierState state = {};
  Arrivals arrivals(2);
  GroupBarrier barrier({.deadline = absl::Minutes(1)}, &state, arrivals);
  RunMembers(2, [&](int member) { ASSERT_TRUE(barrier.Arrive(member)); });
  EXPECT_EQ(barrier.missing_ranks(), std::vector<uint32_t>());
  RunMembers(2, [&](int member) {
    if (member == 0) {
      EXPECT_FALSE(barrier.Arrive(member));
    } else {
      barrier.End();
    }
  });
  EXPECT_EQ(barrier.missing_ranks(), std::vector<uint32_t>());
}

TEST(GroupBarrierTest, NobodyIsMissingWhereAllAreHereAndNobodyReleasesThem) {
  GroupBarrierState state = {};
  Arrivals arrivals(2);
  GroupBarrier barrier({.deadline = absl::Milliseconds(50)}, &state, arrivals);
  RunMembers(2, [&](int member) {
    EXPECT_FALSE(barrier.ArriveForRelease(member, [] {}));
  });
  EXPECT_EQ(barrier.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(barrier.missing_ranks(), std::vector<uint32_t>());
}

}  // namespace
}  // namespace baton
