#include "server/edge/request_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "server/edge/grpc_status.h"

namespace baton {
namespace {

TEST(RequestGateTest, ClosedItRefusesWithARetryDelay) {
  RequestGate gate;
  EXPECT_TRUE(gate.Enter().ok());
  gate.Close();
  const absl::Status status = gate.Enter();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_EQ(gate.inside(), 1u);
}

TEST(RequestGateTest, SaysWhenTheClosedGateIsEmptyAndNotBefore) {
  int empty = 0;
  RequestGate gate([&] { ++empty; });
  ASSERT_TRUE(gate.Enter().ok());
  gate.Leave();
  EXPECT_EQ(empty, 0);
  ASSERT_TRUE(gate.Enter().ok());
  ASSERT_TRUE(gate.Enter().ok());
  gate.Close();
  gate.Leave();
  EXPECT_EQ(empty, 0);
  gate.Leave();
  EXPECT_EQ(empty, 1);
}

TEST(RequestGateTest, ClosingAnEmptyGateSaysSoAtOnce) {
  int empty = 0;
  RequestGate gate([&] { ++empty; });
  gate.Close();
  EXPECT_EQ(empty, 1);
}

TEST(RequestGateTest, CutsThoseInsideOnceAndThoseThatComeToItLater) {
  RequestGate gate;
  int gone = 0, staying = 0, late = 0;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(gate.Enter().ok());
  gate.OnCut(&gone, [&] { ++gone; });
  gate.OnCut(&staying, [&] { ++staying; });
  gate.Leave(&gone);
  gate.Close();
  EXPECT_FALSE(gate.is_cut());
  EXPECT_EQ(staying, 0);
  gate.Cut();
  gate.Cut();
  EXPECT_TRUE(gate.is_cut());
  gate.OnCut(&late, [&] { ++late; });
  EXPECT_EQ(gone, 0);
  EXPECT_EQ(staying, 1);
  EXPECT_EQ(late, 1);
  EXPECT_EQ(gate.inside(), 2u);
}

TEST(RequestGateTest, ARequestMayLeaveWhileItIsCut) {
  int empty = 0;
  RequestGate gate([&] { ++empty; });
  ASSERT_TRUE(gate.Enter().ok());
  gate.OnCut(&gate, [&] { gate.Leave(&gate); });
  gate.Close();
  gate.Cut();
  EXPECT_EQ(empty, 1);
}

TEST(RequestGateTest, CountsAreRightFromManyThreads) {
  std::atomic<int> empty{0};
  RequestGate gate([&] { ++empty; });
  ASSERT_TRUE(gate.Enter().ok());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (gate.Enter().ok()) gate.Leave();
        if (i == 500) gate.Close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(gate.inside(), 1u);
  EXPECT_EQ(empty, 0);
  gate.Leave();
  EXPECT_EQ(empty, 1);
}

TEST(RequestGateTest, TellsThatItClosesOnceAndInsideNobodyCounts) {
  bool emptied = false;
  RequestGate gate([&emptied] { emptied = true; });
  int first = 0;
  int forgotten = 0;
  gate.OnClose(&first, [&] {
    ++first;
    EXPECT_FALSE(gate.Enter().ok());
    EXPECT_FALSE(emptied);
  });
  gate.OnClose(&forgotten, [&] { ++forgotten; });
  gate.ForgetOnClose(&forgotten);
  EXPECT_EQ(gate.inside(), 0u);
  EXPECT_EQ(first, 0);
  gate.Close();
  EXPECT_EQ(first, 1);
  EXPECT_TRUE(emptied);
  gate.Close();
  EXPECT_EQ(first, 1);
  int late = 0;
  gate.OnClose(&late, [&] { ++late; });
  EXPECT_EQ(late, 1);
  EXPECT_EQ(forgotten, 0);
}

}  // namespace
}  // namespace baton
