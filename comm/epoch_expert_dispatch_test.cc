#include "comm/epoch_expert_dispatch.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "comm/testing/expert_exchange.h"

namespace baton {
namespace {

const ExpertGroupShape kShape = SmallGroupShape(2, 9);

std::unique_ptr<SharedExpertExchange> MakeEpoch() {
  auto exchange = SharedExpertExchange::Create(
      {.shape = kShape, .deadline = absl::Minutes(1)});
  EXPECT_TRUE(exchange.ok()) << exchange.status();
  return *std::move(exchange);
}

TEST(EpochExpertDispatchTest, ItsShapeIsThatOfAnEpochsDispatch) {
  const EpochExpertDispatch dispatch(kShape, 1);
  const auto exchange = MakeEpoch();
  const auto bound = exchange->MakeDispatch(1);
  EXPECT_EQ(dispatch.rank(), 1);
  EXPECT_EQ(dispatch.num_ranks(), bound->num_ranks());
  EXPECT_EQ(dispatch.slots_per_rank(), bound->slots_per_rank());
  EXPECT_EQ(dispatch.max_rows(), bound->max_rows());
}

TEST(EpochExpertDispatchTest, EachEpochsRowsGoByItsOwnDispatch) {
  EpochExpertDispatch first(kShape, 0);
  EpochExpertDispatch second(kShape, 1);
  std::unique_ptr<SharedExpertExchange> old;
  for (int epoch = 0; epoch < 3; ++epoch) {
    auto exchange = MakeEpoch();
    first.Bind(exchange->MakeDispatch(0));
    second.Bind(exchange->MakeDispatch(1));
    old = std::move(exchange);  // Nobody refers to the one before.
    std::thread other(
        [&] { EXPECT_TRUE(RunExchangeRank(kShape, 5, &second)); });
    EXPECT_TRUE(RunExchangeRank(kShape, 5, &first));
    other.join();
    old->End();
    EXPECT_EQ(first.status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(EpochExpertDispatchDeathTest, NoStepRunsOutsideAnEpoch) {
  EpochExpertDispatch dispatch(kShape, 0);
  const auto exchange = MakeEpoch();
  dispatch.Bind(exchange->MakeDispatch(0));
  EXPECT_TRUE(dispatch.status().ok());
  dispatch.Bind(nullptr);
  EXPECT_DEATH((void)dispatch.status(), "a step outside an epoch");
  EXPECT_DEATH(dispatch.Combine({}), "a step outside an epoch");
  std::mt19937 random(1);
  const ExchangeTokens tokens = RandomTokens(kShape.experts, 1, &random);
  EXPECT_DEATH(
      Dispatch(kShape.experts, tokens, SlotTable::Identity(18), &dispatch),
      "a step outside an epoch");
}

}  // namespace
}  // namespace baton
