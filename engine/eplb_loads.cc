#include "engine/eplb_loads.h"

#include <cmath>
#include <utility>

namespace baton {
namespace {

template <size_t kGroups>
struct Candidate {
  uint32_t expert;
  uint32_t copies;
  GroupLoad<kGroups> load;
  GroupLoad<kGroups> per_copy;
};

// The hottest replica of a group has at least a slot's mean load, so an expert
// below that in every group is never it (unless all hotter ones are on every
// rank).
template <size_t kGroups>
std::vector<Candidate<kGroups>> HotExperts(
    const ExpertLayout& layout, const std::vector<GroupLoad<kGroups>>& loads) {
  GroupLoad<kGroups> slot_mean = {};
  for (const auto& load : loads) AddTo(&slot_mean, load);
  slot_mean = Times(slot_mean, 1.0f / layout.num_slots());
  std::vector<Candidate<kGroups>> hot;
  for (uint32_t e = 0; e < layout.num_experts; ++e) {
    bool is_hot = false;
    for (size_t g = 0; g < kGroups; ++g) is_hot |= loads[e][g] >= slot_mean[g];
    if (is_hot) hot.push_back({e, 1, loads[e], loads[e]});
  }
  return hot;
}

// What a further copy lowers the sum of the greatest loads per replica by.
template <size_t kGroups>
float GainOfCopy(const Candidate<kGroups>& c, const GroupLoad<kGroups>& first,
                 const GroupLoad<kGroups>& second) {
  const float shrink = 1.0f * c.copies / (c.copies + 1);
  GroupLoad<kGroups> gain;
  for (size_t g = 0; g < kGroups; ++g) {
    const float then = std::max(second[g], c.per_copy[g] * shrink);
    gain[g] = c.per_copy[g] == first[g] ? first[g] - then : 0.0f;
  }
  return Sum(gain);
}

template <size_t kGroups>
size_t Hottest(const std::vector<Candidate<kGroups>>& candidates) {
  GroupLoad<kGroups> first = {}, second = {};
  for (const auto& c : candidates) {
    for (size_t g = 0; g < kGroups; ++g) {
      const float less = std::min(first[g], c.per_copy[g]);
      second[g] = std::max(second[g], less);
      first[g] = std::max(first[g], c.per_copy[g]);
    }
  }
  size_t best = 0;
  std::pair<float, float> best_gain = {-1.0f, 0.0f};
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::pair<float, float> gain = {
        GainOfCopy(candidates[i], first, second), Sum(candidates[i].per_copy)};
    if (gain > best_gain) {
      best = i;
      best_gain = gain;
    }
  }
  return best;
}

// No expert that would gain by it can take another: the rest in order.
void GiveToAny(const ExpertLayout& layout, uint32_t num_left,
               std::vector<uint32_t>* copies) {
  for (uint32_t e = 0; num_left > 0; e = (e + 1) % layout.num_experts) {
    if ((*copies)[e] == layout.num_ranks) continue;
    ++(*copies)[e];
    --num_left;
  }
}

}  // namespace

template <size_t kGroups>
std::vector<uint32_t> GreedyCopies(
    const ExpertLayout& layout, const std::vector<GroupLoad<kGroups>>& loads) {
  std::vector<uint32_t> copies(layout.num_experts, 1);
  uint32_t left = layout.num_slots() - layout.num_experts;
  auto candidates = HotExperts<kGroups>(layout, loads);
  for (; left > 0 && !candidates.empty(); --left) {
    const size_t index = Hottest(candidates);
    Candidate<kGroups>& c = candidates[index];
    ++copies[c.expert];
    if (++c.copies == layout.num_ranks) {
      candidates.erase(candidates.begin() + index);
    } else {
      c.per_copy = Times(c.load, 1.0f / c.copies);
    }
  }
  GiveToAny(layout, left, &copies);
  return copies;
}

template <size_t kGroups>
std::vector<uint32_t> ThresholdCopies(
    const ExpertLayout& layout, const std::vector<GroupLoad<kGroups>>& loads,
    float threshold) {
  std::vector<float> sums;
  float total = 0;
  for (const auto& load : loads) total += sums.emplace_back(Sum(load));
  const float most = threshold * total / layout.num_ranks;
  std::vector<uint32_t> copies(layout.num_experts, 1);
  std::vector<std::pair<float, uint32_t>> others;  // Load per replica, a heap.
  uint32_t used = 0;
  for (uint32_t e = 0; e < layout.num_experts; ++e) {
    if (sums[e] > most) {
      copies[e] =
          std::min<uint32_t>(layout.num_ranks, std::ceil(sums[e] / most));
    } else {
      others.push_back({sums[e], e});
    }
    used += copies[e];
  }
  if (used > layout.num_slots()) return {};
  uint32_t left = layout.num_slots() - used;
  std::make_heap(others.begin(), others.end());
  for (; left > 0 && !others.empty(); --left) {
    std::pop_heap(others.begin(), others.end());
    const uint32_t e = others.back().second;
    others.pop_back();
    if (++copies[e] == layout.num_ranks) continue;
    others.push_back({sums[e] / copies[e], e});
    std::push_heap(others.begin(), others.end());
  }
  GiveToAny(layout, left, &copies);
  return copies;
}

template std::vector<uint32_t> GreedyCopies<1>(
    const ExpertLayout&, const std::vector<GroupLoad<1>>&);
template std::vector<uint32_t> GreedyCopies<16>(
    const ExpertLayout&, const std::vector<GroupLoad<16>>&);
template std::vector<uint32_t> ThresholdCopies<1>(
    const ExpertLayout&, const std::vector<GroupLoad<1>>&, float);
template std::vector<uint32_t> ThresholdCopies<16>(
    const ExpertLayout&, const std::vector<GroupLoad<16>>&, float);

}  // namespace baton
