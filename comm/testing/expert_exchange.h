// Layers of a group's exchange whose results can be told to be right.
#ifndef BATON_COMM_TESTING_EXPERT_EXCHANGE_H_
#define BATON_COMM_TESTING_EXPERT_EXCHANGE_H_

#include <cstdint>
#include <random>
#include <vector>

#include "comm/expert_boards.h"
#include "comm/expert_dispatch.h"
#include "comm/slot_table.h"

namespace baton {

// 16 experts, of which a token has 4; 12 tokens at most.
ExpertGroupShape SmallGroupShape(int num_ranks, int slots_per_rank);

struct ExchangeTokens {
  std::vector<float> x = {};
  std::vector<int32_t> experts = {};
  int num = 0;
};
ExchangeTokens RandomTokens(const ExpertShape& shape, int num,
                            std::mt19937* random);

ExpertRows Dispatch(const ExpertShape& shape, const ExchangeTokens& tokens,
                    const SlotTable& table, ExpertDispatch* dispatch);
// Expert e adds 1000 * (e + 1).
void RunExperts(const ExpertRows& rows);
// Both, and Combine. True: every output is of its token and expert.
bool ExchangesRight(const ExpertShape& shape, const ExchangeTokens& tokens,
                    const SlotTable& table, ExpertDispatch* dispatch);

// One rank's part of so many layers: uneven, often empty, each with a placement
// of its own, the same on all ranks. True: all right.
bool RunExchangeRank(const ExpertGroupShape& shape, int num_layers,
                     ExpertDispatch* dispatch);

}  // namespace baton

#endif  // BATON_COMM_TESTING_EXPERT_EXCHANGE_H_
