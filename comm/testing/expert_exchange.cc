#include "comm/testing/expert_exchange.h"

#include <algorithm>
#include <numeric>

#include "comm/testing/random_slot_table.h"

namespace baton {

ExpertGroupShape SmallGroupShape(int num_ranks, int slots_per_rank) {
  return {.experts = {.num_experts = 16,
                      .top_k = 4,
                      .hidden_size = 5,
                      .max_tokens = 12},
          .num_ranks = num_ranks,
          .slots_per_rank = slots_per_rank};
}

ExchangeTokens RandomTokens(const ExpertShape& shape, int num,
                            std::mt19937* random) {
  ExchangeTokens tokens = {.num = num};
  std::vector<int32_t> all(shape.num_experts);
  std::iota(all.begin(), all.end(), 0);
  for (int t = 0; t < num; ++t) {
    for (int c = 0; c < shape.hidden_size; ++c) {
      tokens.x.push_back(static_cast<float>((*random)() % 1000));
    }
    std::ranges::shuffle(all, *random);
    tokens.experts.insert(tokens.experts.end(), all.begin(),
                          all.begin() + shape.top_k);
  }
  return tokens;
}

ExpertRows Dispatch(const ExpertShape& shape, const ExchangeTokens& tokens,
                    const SlotTable& table, ExpertDispatch* dispatch) {
  return dispatch->Dispatch(
      Dense(tokens.x.data(), tokens.num, shape.hidden_size),
      Dense(tokens.experts.data(), tokens.num, shape.top_k), table.view());
}

void RunExperts(const ExpertRows& rows) {
  for (size_t s = 0; s < rows.experts.size(); ++s) {
    const float added = 1000.0f * static_cast<float>(rows.experts[s] + 1);
    for (int r = rows.offsets[s]; r < rows.offsets[s + 1]; ++r) {
      std::transform(rows.inputs.row(r), rows.inputs.row(r) + rows.inputs.cols,
                     rows.outputs.row(r),
                     [&](float value) { return value + added; });
    }
  }
}

bool ExchangesRight(const ExpertShape& shape, const ExchangeTokens& tokens,
                    const SlotTable& table, ExpertDispatch* dispatch) {
  RunExperts(Dispatch(shape, tokens, table, dispatch));
  const int hidden = shape.hidden_size;
  std::vector<float> routed(tokens.num * shape.top_k * hidden);
  dispatch->Combine(Dense(routed.data(), tokens.num * shape.top_k, hidden));
  for (size_t i = 0; i < routed.size(); ++i) {
    const size_t choice = i / hidden;
    const float x = tokens.x[choice / shape.top_k * hidden + i % hidden];
    const auto expert = static_cast<float>(tokens.experts[choice]);
    if (routed[i] != x + 1000.0f * (expert + 1)) return false;
  }
  return true;
}

bool RunExchangeRank(const ExpertGroupShape& shape, int num_layers,
                     ExpertDispatch* dispatch) {
  std::mt19937 tokens_random(dispatch->rank() + 1);
  std::mt19937 table_random(7);
  const int max_tokens = shape.experts.max_tokens;
  for (int layer = 0; layer < num_layers; ++layer) {
    const SlotTable table =
        RandomSlotTable(shape.experts.num_experts, shape.num_ranks,
                        shape.slots_per_rank, &table_random);
    const int num = std::max<int>(
        0, static_cast<int>(tokens_random() % (2 * max_tokens)) - max_tokens);
    const ExchangeTokens tokens =
        RandomTokens(shape.experts, num, &tokens_random);
    if (!ExchangesRight(shape.experts, tokens, table, dispatch)) return false;
  }
  return dispatch->status().ok();
}

}  // namespace baton
