#include "comm/local_expert_dispatch.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "comm/slot_table.h"

namespace baton {
namespace {

TEST(LocalExpertDispatchTest, GroupsRowsByExpertInTokenOrder) {
  const SlotTable table = SlotTable::Identity(4);
  LocalExpertDispatch dispatch(
      {.num_experts = 4, .top_k = 2, .hidden_size = 1, .max_tokens = 3});
  const std::vector<float> x = {10, 20, 30};
  const std::vector<int32_t> experts = {3, 0, 0, 1, 3, 0};
  const ExpertRows rows = dispatch.Dispatch(
      Dense(x.data(), 3, 1), Dense(experts.data(), 3, 2), table.view());
  EXPECT_EQ(std::vector<int32_t>(rows.offsets.begin(), rows.offsets.end()),
            (std::vector<int32_t>{0, 3, 4, 4, 6}));
  ASSERT_EQ(rows.inputs.rows, 6);
  const std::vector<float> expected = {10, 20, 30, 20, 10, 30};
  for (int r = 0; r < 6; ++r) EXPECT_EQ(*rows.inputs.row(r), expected[r]);
}

TEST(LocalExpertDispatchTest, NoTokensAreNoRows) {
  const SlotTable table = SlotTable::Identity(2);
  LocalExpertDispatch dispatch(
      {.num_experts = 2, .top_k = 1, .hidden_size = 3, .max_tokens = 1});
  const ExpertRows rows =
      dispatch.Dispatch(Dense<const float>(nullptr, 0, 3),
                        Dense<const int32_t>(nullptr, 0, 1), table.view());
  EXPECT_EQ(rows.inputs.rows, 0);
  EXPECT_EQ(rows.offsets.back(), 0);
  dispatch.Combine(Dense<float>(nullptr, 0, 3));
}

// Expert e adds 1000 * (e + 1).
void RunExperts(const ExpertRows& rows, int num_experts, int hidden_size) {
  for (int e = 0; e < num_experts; ++e) {
    for (int r = rows.offsets[e]; r < rows.offsets[e + 1]; ++r) {
      for (int c = 0; c < hidden_size; ++c) {
        rows.outputs.row(r)[c] = rows.inputs.row(r)[c] + 1000.0f * (e + 1);
      }
    }
  }
}

TEST(LocalExpertDispatchTest, EachOutputComesBackToItsTokenAndChoice) {
  const int kExperts = 16;
  const int kTopK = 4;
  const int kHidden = 5;
  LocalExpertDispatch dispatch({.num_experts = kExperts,
                                .top_k = kTopK,
                                .hidden_size = kHidden,
                                .max_tokens = 40});
  std::mt19937 random(1);
  const SlotTable table = SlotTable::Identity(kExperts);
  for (const int tokens : {40, 1, 17, 40}) {
    std::vector<float> x(tokens * kHidden);
    for (float& value : x) value = static_cast<float>(random() % 1000);
    std::vector<int32_t> experts;
    for (int t = 0; t < tokens; ++t) {
      std::set<int32_t> chosen;
      while (static_cast<int>(chosen.size()) < kTopK) {
        chosen.insert(random() % kExperts);
      }
      experts.insert(experts.end(), chosen.rbegin(), chosen.rend());
    }
    const ExpertRows rows = dispatch.Dispatch(
        Dense<const float>(x.data(), tokens, kHidden),
        Dense<const int32_t>(experts.data(), tokens, kTopK), table.view());
    RunExperts(rows, kExperts, kHidden);
    std::vector<float> routed(tokens * kTopK * kHidden);
    dispatch.Combine(Dense(routed.data(), tokens * kTopK, kHidden));
    for (int i = 0; i < tokens * kTopK; ++i) {
      for (int c = 0; c < kHidden; ++c) {
        EXPECT_EQ(routed[i * kHidden + c],
                  x[i / kTopK * kHidden + c] + 1000.0f * (experts[i] + 1));
      }
    }
  }
}

}  // namespace
}  // namespace baton
