#include "comm/testing/random_slot_table.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace baton {

SlotTable RandomSlotTable(int num_experts, int num_ranks, int slots_per_rank,
                          std::mt19937* random) {
  std::vector<uint32_t> all(num_experts);
  std::iota(all.begin(), all.end(), 0u);
  std::ranges::shuffle(all, *random);
  // Which slots are those of first copies is chance, too.
  std::vector<int> ranks;
  for (int i = 0; i < num_ranks * slots_per_rank; ++i) {
    ranks.push_back(i % num_ranks);
  }
  std::ranges::shuffle(ranks, *random);
  std::vector<std::vector<uint32_t>> held(num_ranks);
  for (int i = 0; i < num_experts; ++i) held[ranks[i]].push_back(all[i]);
  std::vector<uint32_t> experts;
  for (std::vector<uint32_t>& mine : held) {
    std::ranges::shuffle(all, *random);
    for (const uint32_t expert : all) {
      if (std::ssize(mine) == slots_per_rank) break;
      if (std::ranges::count(mine, expert) == 0) mine.push_back(expert);
    }
    std::ranges::shuffle(mine, *random);
    experts.insert(experts.end(), mine.begin(), mine.end());
  }
  return {num_experts, std::move(experts)};
}

}  // namespace baton
