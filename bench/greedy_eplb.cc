#include "bench/greedy_eplb.h"

#include <algorithm>
#include <numeric>

namespace baton {

std::vector<uint32_t> GreedyPlacement(const ExpertLayout& layout,
                                      const std::vector<double>& loads) {
  std::vector<uint32_t> copies(layout.num_experts, 1);
  const auto per_copy = [&](uint32_t e) { return loads[e] / copies[e]; };
  std::vector<uint32_t> replicas(layout.num_experts);
  std::iota(replicas.begin(), replicas.end(), 0);
  while (replicas.size() < layout.num_slots()) {
    uint32_t hottest = 0;
    for (uint32_t e = 1; e < layout.num_experts; ++e) {
      if (per_copy(e) > per_copy(hottest)) hottest = e;
    }
    ++copies[hottest];
    replicas.push_back(hottest);
  }
  std::stable_sort(
      replicas.begin(), replicas.end(),
      [&](uint32_t a, uint32_t b) { return per_copy(a) > per_copy(b); });
  std::vector<double> rank_loads(layout.num_ranks);
  std::vector<uint32_t> num_held(layout.num_ranks);
  std::vector<uint32_t> experts(layout.num_slots());
  for (const uint32_t e : replicas) {
    uint32_t best = layout.num_ranks;
    for (uint32_t r = 0; r < layout.num_ranks; ++r) {
      if (num_held[r] == layout.slots_per_rank) continue;
      if (best == layout.num_ranks || rank_loads[r] < rank_loads[best]) {
        best = r;
      }
    }
    experts[best * layout.slots_per_rank + num_held[best]++] = e;
    rank_loads[best] += per_copy(e);
  }
  return experts;
}

}  // namespace baton
