#include "comm/shared_expert_dispatch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "comm/slot_table.h"
#include "comm/testing/expert_exchange.h"

namespace baton {
namespace {

constexpr int kExperts = 16;
constexpr int kTopK = 4;
constexpr int kHidden = 5;
constexpr int kMaxTokens = 12;
constexpr int kLayers = 30;

ExpertExchangeOptions Options(int num_ranks, int slots_per_rank) {
  return {.shape = SmallGroupShape(num_ranks, slots_per_rank),
          .deadline = absl::Minutes(1)};
}

bool RunRank(SharedExpertExchange* exchange, const ExpertGroupShape& shape,
             int rank) {
  return RunExchangeRank(shape, kLayers, exchange->MakeDispatch(rank).get());
}

struct Group {
  int num_ranks;
  int slots_per_rank;
};

class SharedExpertDispatchTest : public testing::TestWithParam<Group> {};

INSTANTIATE_TEST_SUITE_P(Groups, SharedExpertDispatchTest,
                         testing::Values(Group{1, 16}, Group{2, 8}, Group{2, 9},
                                         Group{4, 4}, Group{4, 7}, Group{8, 2},
                                         Group{8, 5}, Group{16, 1},
                                         Group{64, 1}, Group{64, 2}));

TEST_P(SharedExpertDispatchTest, ThreadsGetEachOutputForItsTokenAndChoice) {
  const auto [num_ranks, slots] = GetParam();
  const ExpertExchangeOptions options = Options(num_ranks, slots);
  auto exchange = SharedExpertExchange::Create(options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_TRUE(RunRank(exchange->get(), options.shape, rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedExpertDispatchTest, ARankIsGivenItsOwnSlotsInOrderOfSources) {
  const ExpertShape shape = SmallGroupShape(2, 8).experts;
  auto exchange = SharedExpertExchange::Create(Options(2, 8));
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<uint32_t> experts(kExperts);
  std::iota(experts.rbegin(), experts.rend(), 0u);
  const SlotTable table(kExperts, experts);
  std::thread other([&] {
    const auto dispatch = (*exchange)->MakeDispatch(1);
    EXPECT_TRUE(ExchangesRight(
        shape, {.x = {7, 7, 7, 7, 7}, .experts = {15, 0, 1, 9}, .num = 1},
        table, dispatch.get()));
  });
  const auto dispatch = (*exchange)->MakeDispatch(0);
  const ExpertRows rows = Dispatch(
      shape, {.x = {3, 3, 3, 3, 3}, .experts = {2, 9, 3, 14}, .num = 1}, table,
      dispatch.get());
  EXPECT_EQ(std::vector<uint32_t>(rows.experts.begin(), rows.experts.end()),
            (std::vector<uint32_t>{15, 14, 13, 12, 11, 10, 9, 8}));
  EXPECT_EQ(std::vector<int32_t>(rows.offsets.begin(), rows.offsets.end()),
            (std::vector<int32_t>{0, 1, 2, 2, 2, 2, 2, 4, 4}));
  ASSERT_EQ(rows.inputs.rows, 4);
  const float expected[] = {7, 3, 3, 7};
  for (int r = 0; r < 4; ++r) EXPECT_EQ(*rows.inputs.row(r), expected[r]);
  RunExperts(rows);
  std::vector<float> routed(kTopK * kHidden);
  dispatch->Combine(Dense(routed.data(), kTopK, kHidden));
  other.join();
}

TEST(SharedExpertDispatchTest, ProcessesGetEachOutputForItsTokenAndChoice) {
  const ExpertExchangeOptions options = Options(8, 3);
  auto exchange = SharedExpertExchange::Create(options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 8; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    auto mine = SharedExpertExchange::Open(options, (*exchange)->path());
    _exit(mine.ok() && RunRank(mine->get(), options.shape, rank) ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(SharedExpertDispatchTest, RefusesOptionsOfAnotherGroupAndSaysWhich) {
  ExpertExchangeOptions options = Options(2, 8);
  auto exchange = SharedExpertExchange::Create(options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  options.shape.experts.num_experts = 15;
  EXPECT_EQ(SharedExpertExchange::Open(options, (*exchange)->path())
                .status()
                .message(),
            (*exchange)->path() +
                ": the group's num_experts is 16, but here it is 15");
}

TEST(SharedExpertDispatchTest, AnEndInTheMiddleOfALayerEndsAll) {
  const ExpertExchangeOptions options = Options(4, 4);
  auto exchange = SharedExpertExchange::Create(options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  const SlotTable table = SlotTable::Identity(kExperts);
  std::latch all_have_rows(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      const auto dispatch = (*exchange)->MakeDispatch(rank);
      std::mt19937 random(rank);
      const ExpertShape& shape = options.shape.experts;
      const ExchangeTokens tokens = RandomTokens(shape, kMaxTokens, &random);
      EXPECT_GT(Dispatch(shape, tokens, table, dispatch.get()).inputs.rows, 0);
      all_have_rows.arrive_and_wait();
      // The others wait for rank 2's outputs.
      if (rank == 2) (*exchange)->End();
      std::vector<float> routed(tokens.num * kTopK * kHidden, 1.0f);
      dispatch->Combine(Dense(routed.data(), tokens.num * kTopK, kHidden));
      EXPECT_EQ(std::ranges::count(routed, 0.0f), std::ssize(routed));
      EXPECT_EQ(Dispatch(shape, tokens, table, dispatch.get()).inputs.rows, 0);
      dispatch->Combine(Dense(routed.data(), tokens.num * kTopK, kHidden));
      EXPECT_EQ(dispatch->status().code(), absl::StatusCode::kUnavailable);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedExpertDispatchTest, AKilledProcessEndsTheOthersByTheDeadline) {
  ExpertExchangeOptions options = Options(2, 8);
  options.deadline = absl::Milliseconds(200);
  auto exchange = SharedExpertExchange::Create(options);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto dispatch = (*exchange)->MakeDispatch(0);
  std::mt19937 random(1);
  const ExpertShape& shape = options.shape.experts;
  const ExpertRows rows =
      Dispatch(shape, RandomTokens(shape, 3, &random),
               SlotTable::Identity(kExperts), dispatch.get());
  EXPECT_EQ(rows.inputs.rows, 0);
  EXPECT_EQ(dispatch->status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace baton
