// The size of an expert-parallel group and its placement: neither changes a
// bit.
#include "tests/invariance/expert_group.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "comm/shared_expert_dispatch.h"
#include "tests/invariance/expert_group_fixture.h"

namespace baton {
namespace {

TEST_P(ExpertGroupTest, RanksAsThreadsGiveTheTokensOfOneRank) {
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  EXPECT_TRUE(RunRanks(exchange->get(), {0, GetParam().num_ranks}));
}

TEST_P(ExpertGroupTest, AnEndInTheMiddleOfAStepEndsEveryRank) {
  const int num_ranks = GetParam().num_ranks;
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options = options_;
      // The others are in step 4, or wait in it.
      options.before_step = [&](uint32_t step) {
        if (rank == 0 && step == 4) (*exchange)->End();
      };
      EXPECT_TRUE(RunGroupRank(options, *weights_,
                               (*exchange)->MakeDispatch(rank),
                               JobsOf(jobs_, rank, num_ranks))
                      .empty());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Groups, ExpertGroupTest,
                         testing::Values(Group{1, 64, 0}, Group{2, 32, 0},
                                         Group{2, 40, 3}, Group{4, 16, 2},
                                         Group{4, 20, 0}, Group{8, 8, 3},
                                         Group{8, 9, 0}, Group{64, 1, 0},
                                         Group{64, 2, 3}));

}  // namespace
}  // namespace baton
