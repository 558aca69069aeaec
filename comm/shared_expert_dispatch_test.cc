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
#include "comm/testing/random_slot_table.h"

namespace baton {
namespace {

constexpr int kExperts = 16;
constexpr int kTopK = 4;
constexpr int kHidden = 5;
constexpr int kMaxTokens = 12;

ExpertExchangeOptions Options(int num_ranks, int slots_per_rank) {
  return {.shape = {.experts = {.num_experts = kExperts,
                                .top_k = kTopK,
                                .hidden_size = kHidden,
                                .max_tokens = kMaxTokens},
                    .num_ranks = num_ranks,
                    .slots_per_rank = slots_per_rank},
          .deadline = absl::Minutes(1)};
}

struct Tokens {
  std::vector<float> x = {};
  std::vector<int32_t> experts = {};
  int num = 0;
};

Tokens RandomTokens(int num, std::mt19937* random) {
  Tokens tokens = {.num = num};
  std::vector<int32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  for (int t = 0; t < num; ++t) {
    for (int c = 0; c < kHidden; ++c) {
      tokens.x.push_back(static_cast<float>((*random)() % 1000));
    }
    std::ranges::shuffle(all, *random);
    tokens.experts.insert(tokens.experts.end(), all.begin(),
                          all.begin() + kTopK);
  }
  return tokens;
}

ExpertRows Dispatch(ExpertDispatch* dispatch, const Tokens& tokens,
                    const SlotTable& table) {
  return dispatch->Dispatch(
      Dense<const float>(tokens.x.data(), tokens.num, kHidden),
      Dense<const int32_t>(tokens.experts.data(), tokens.num, kTopK),
      table.view());
}

// Expert e adds 1000 * (e + 1).
void RunExperts(const ExpertRows& rows) {
  for (size_t s = 0; s < rows.experts.size(); ++s) {
    for (int r = rows.offsets[s]; r < rows.offsets[s + 1]; ++r) {
      for (int c = 0; c < kHidden; ++c) {
        rows.outputs.row(r)[c] =
            rows.inputs.row(r)[c] + 1000.0f * (rows.experts[s] + 1);
      }
    }
  }
}

// True: every output is of its token and expert.
bool ExchangesRight(ExpertDispatch* dispatch, const Tokens& tokens,
                    const SlotTable& table) {
  RunExperts(Dispatch(dispatch, tokens, table));
  std::vector<float> routed(tokens.num * kTopK * kHidden);
  dispatch->Combine(Dense(routed.data(), tokens.num * kTopK, kHidden));
  for (int i = 0; i < tokens.num * kTopK; ++i) {
    for (int c = 0; c < kHidden; ++c) {
      const float expected =
          tokens.x[i / kTopK * kHidden + c] + 1000.0f * (tokens.experts[i] + 1);
      if (routed[i * kHidden + c] != expected) return false;
    }
  }
  return true;
}

// What one rank does: uneven, often empty steps, each with a placement of its
// own.
bool RunRank(SharedExpertExchange* exchange, const ExpertGroupShape& shape,
             int rank) {
  const std::unique_ptr<ExpertDispatch> dispatch = exchange->MakeDispatch(rank);
  std::mt19937 tokens_random(rank + 1);
  std::mt19937 table_random(7);
  for (int layer = 0; layer < 30; ++layer) {
    const SlotTable table = RandomSlotTable(
        kExperts, shape.num_ranks, shape.slots_per_rank, &table_random);
    const int num = std::max<int>(
        0, static_cast<int>(tokens_random() % (2 * kMaxTokens)) - kMaxTokens);
    const Tokens tokens = RandomTokens(num, &tokens_random);
    if (!ExchangesRight(dispatch.get(), tokens, table)) return false;
  }
  return dispatch->status().ok();
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
  auto exchange = SharedExpertExchange::Create(Options(2, 8));
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<uint32_t> experts(kExperts);
  std::iota(experts.rbegin(), experts.rend(), 0u);
  const SlotTable table(kExperts, experts);
  std::thread other([&] {
    const auto dispatch = (*exchange)->MakeDispatch(1);
    EXPECT_TRUE(ExchangesRight(
        dispatch.get(),
        {.x = {7, 7, 7, 7, 7}, .experts = {15, 0, 1, 9}, .num = 1}, table));
  });
  const auto dispatch = (*exchange)->MakeDispatch(0);
  const ExpertRows rows = Dispatch(
      dispatch.get(),
      {.x = {3, 3, 3, 3, 3}, .experts = {2, 9, 3, 14}, .num = 1}, table);
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
      const Tokens tokens = RandomTokens(kMaxTokens, &random);
      EXPECT_GT(Dispatch(dispatch.get(), tokens, table).inputs.rows, 0);
      all_have_rows.arrive_and_wait();
      // The others wait for rank 2's outputs.
      if (rank == 2) (*exchange)->End();
      std::vector<float> routed(tokens.num * kTopK * kHidden, 1.0f);
      dispatch->Combine(Dense(routed.data(), tokens.num * kTopK, kHidden));
      EXPECT_EQ(std::ranges::count(routed, 0.0f), std::ssize(routed));
      EXPECT_EQ(Dispatch(dispatch.get(), tokens, table).inputs.rows, 0);
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
  const ExpertRows rows = Dispatch(dispatch.get(), RandomTokens(3, &random),
                                   SlotTable::Identity(kExperts));
  EXPECT_EQ(rows.inputs.rows, 0);
  EXPECT_EQ(dispatch->status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace baton
