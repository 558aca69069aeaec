#include "engine/expert_alignment.h"

#include <algorithm>
#include <array>

namespace baton {
namespace {

std::span<const uint32_t> OfRank(const ExpertLayout& layout,
                                 std::span<const uint32_t> experts,
                                 uint32_t rank) {
  return experts.subspan(size_t{rank} * layout.slots_per_rank,
                         layout.slots_per_rank);
}

bool Contains(std::span<const uint32_t> experts, uint32_t expert) {
  return std::find(experts.begin(), experts.end(), expert) != experts.end();
}

// (Experts not in common, present rank, rank of `experts`), of those that have
// any in common, in order.
std::vector<std::array<uint32_t, 3>> LikeRanks(
    const ExpertLayout& layout, std::span<const uint32_t> present,
    std::span<const uint32_t> experts) {
  const uint32_t ranks = layout.num_ranks;
  std::vector<std::vector<uint32_t>> holders(layout.num_experts);
  for (uint32_t s = 0; s < experts.size(); ++s) {
    holders[experts[s]].push_back(layout.rank_of(s));
  }
  std::vector<uint32_t> num_common(size_t{ranks} * ranks);
  for (uint32_t s = 0; s < present.size(); ++s) {
    for (const uint32_t r : holders[present[s]]) {
      ++num_common[size_t{layout.rank_of(s)} * ranks + r];
    }
  }
  std::vector<std::array<uint32_t, 3>> pairs;
  for (uint32_t old = 0; old < ranks; ++old) {
    for (uint32_t r = 0; r < ranks; ++r) {
      const uint32_t common = num_common[size_t{old} * ranks + r];
      if (common > 0) pairs.push_back({layout.slots_per_rank - common, old, r});
    }
  }
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

}  // namespace

std::vector<uint32_t> AlignRanks(const ExpertLayout& layout,
                                 std::span<const uint32_t> present,
                                 std::span<const uint32_t> experts) {
  const uint32_t none = layout.num_ranks;
  std::vector<uint32_t> takes(layout.num_ranks, none);  // By present rank.
  std::vector<uint8_t> taken(layout.num_ranks, 0);
  for (const auto& [unlike, old, r] : LikeRanks(layout, present, experts)) {
    if (takes[old] != none || taken[r] != 0) continue;
    takes[old] = r;
    taken[r] = 1;
  }
  std::vector<uint32_t> aligned;
  aligned.reserve(experts.size());
  uint32_t next = 0;
  for (uint32_t r : takes) {
    while (next < none && taken[next] != 0) ++next;
    if (r == none) r = next++;
    const auto of_rank = OfRank(layout, experts, r);
    aligned.insert(aligned.end(), of_rank.begin(), of_rank.end());
  }
  return aligned;
}

std::vector<uint32_t> AlignSlots(const ExpertLayout& layout,
                                 std::span<const uint32_t> present,
                                 std::span<const uint32_t> experts) {
  std::vector<uint32_t> aligned(present.begin(), present.end());
  for (uint32_t r = 0; r < layout.num_ranks; ++r) {
    const auto had = OfRank(layout, present, r);
    const auto has = OfRank(layout, experts, r);
    auto next = has.begin();
    for (uint32_t i = 0; i < had.size(); ++i) {
      if (Contains(has, had[i])) continue;
      while (Contains(had, *next)) ++next;
      aligned[size_t{r} * layout.slots_per_rank + i] = *next++;
    }
  }
  return aligned;
}

}  // namespace baton
