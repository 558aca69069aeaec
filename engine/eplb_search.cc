#include "engine/eplb_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

// A copy goes from a cold expert to a hot one if the hot one's load per replica
// is this many times what the cold one's becomes.
constexpr float kCopyGain = 1.2f;
// Ranks that a full rank looks at first for a partner.
constexpr size_t kFirstPartners = 8;
// Swaps that lower less than this of the full rank's excess are rounding.
constexpr float kLeastGain = 1e-4f;

// In a fixed order, and by halves, which compilers turn into vectors.
template <size_t kGroups>
float Sum(std::array<float, kGroups> v) {
  for (size_t width = kGroups / 2; width > 0; width /= 2) {
    for (size_t g = 0; g < width; ++g) v[g] += v[g + width];
  }
  return v[0];
}

template <size_t kGroups>
float Dot(const std::array<float, kGroups>& a,
          const std::array<float, kGroups>& b) {
  std::array<float, kGroups> product;
  for (size_t g = 0; g < kGroups; ++g) product[g] = a[g] * b[g];
  return Sum(product);
}

template <size_t kGroups>
std::array<float, kGroups> Times(const std::array<float, kGroups>& a, float b) {
  std::array<float, kGroups> product;
  for (size_t g = 0; g < kGroups; ++g) product[g] = a[g] * b;
  return product;
}

template <size_t kGroups>
void AddTo(std::array<float, kGroups>* sum,
           const std::array<float, kGroups>& a) {
  for (size_t g = 0; g < kGroups; ++g) (*sum)[g] += a[g];
}

template <size_t kGroups>
void MaxTo(std::array<float, kGroups>* most,
           const std::array<float, kGroups>& a) {
  for (size_t g = 0; g < kGroups; ++g) (*most)[g] = std::max((*most)[g], a[g]);
}

// Gives `num_copies` copies one by one.
template <size_t kGroups>
class CopyGiver {
 public:
  using Load = std::array<float, kGroups>;

  CopyGiver(const ExpertLayout& layout, const std::vector<Load>& loads)
      : layout_(layout), loads_(loads), copies_(layout.num_experts, 1) {
    // The hottest replica of a group has at least a slot's mean load, so an
    // expert below that in every group never gets a copy (unless those above
    // have one on every rank).
    Load slot_mean = {};
    for (const Load& load : loads) AddTo(&slot_mean, load);
    slot_mean = Times(slot_mean, 1.0f / layout.num_slots());
    for (uint32_t e = 0; e < layout.num_experts; ++e) {
      bool hot = false;
      for (size_t g = 0; g < kGroups; ++g) hot |= loads[e][g] >= slot_mean[g];
      if (hot) candidates_.push_back({e, loads[e]});
    }
  }

  std::vector<uint32_t> Give(uint32_t num_copies) {
    for (; num_copies > 0 && layout_.num_ranks > 1; --num_copies) {
      if (candidates_.empty()) break;
      GiveTo(Hottest());
    }
    GiveToAny(num_copies);
    return std::move(copies_);
  }

 private:
  struct Candidate {
    uint32_t expert;
    Load per_copy;
  };

  // Whose next copy lowers the sum of the greatest loads per replica most; of
  // equals, the one with the greatest sum of its own.
  size_t Hottest() const {
    Load first = candidates_[0].per_copy;
    for (const Candidate& c : candidates_) MaxTo(&first, c.per_copy);
    Load second = {};
    std::array<uint32_t, kGroups> owners = {};
    for (const Candidate& c : candidates_) {
      for (size_t g = 0; g < kGroups; ++g) {
        const bool is_first = c.per_copy[g] == first[g];
        // Two that are first: none of them alone lowers this group.
        const bool counts = !is_first || ++owners[g] > 1;
        second[g] = std::max(second[g], counts ? c.per_copy[g] : 0.0f);
      }
    }
    size_t best = 0;
    std::pair<float, float> best_gain = {-1.0f, 0.0f};
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const std::pair<float, float> gain = {Gain(candidates_[i], first, second),
                                            Sum(candidates_[i].per_copy)};
      if (gain > best_gain) {
        best = i;
        best_gain = gain;
      }
    }
    return best;
  }

  float Gain(const Candidate& c, const Load& first, const Load& second) const {
    const float copies = copies_[c.expert];
    Load gain;
    for (size_t g = 0; g < kGroups; ++g) {
      const float then =
          std::max(second[g], c.per_copy[g] * (copies / (copies + 1)));
      gain[g] = c.per_copy[g] == first[g] ? first[g] - then : 0.0f;
    }
    return Sum(gain);
  }

  void GiveTo(size_t index) {
    Candidate& c = candidates_[index];
    const uint32_t copies = ++copies_[c.expert];
    if (copies == layout_.num_ranks) {
      candidates_.erase(candidates_.begin() + index);
      return;
    }
    c.per_copy = Times(loads_[c.expert], 1.0f / copies);
  }

  // No expert with load can take another: the rest in order.
  void GiveToAny(uint32_t num_copies) {
    for (uint32_t e = 0; num_copies > 0; e = (e + 1) % layout_.num_experts) {
      if (copies_[e] == layout_.num_ranks) continue;
      ++copies_[e];
      --num_copies;
    }
  }

  const ExpertLayout& layout_;
  const std::vector<Load>& loads_;
  std::vector<uint32_t> copies_;
  std::vector<Candidate> candidates_;
};

}  // namespace

template <int kGroups>
EplbSearch<kGroups>::EplbSearch(const ExpertLayout& layout,
                                std::span<const Load> loads)
    : layout_(layout),
      loads_(loads.begin(), loads.end()),
      copies_(layout.num_experts),
      copy_loads_(layout.num_experts),
      held_(layout.num_ranks),
      holds_(size_t{layout.num_ranks} * layout.num_experts),
      rank_loads_(layout.num_ranks),
      excess_(layout.num_ranks) {
  CHECK_EQ(loads.size(), layout.num_experts);
  for (const Load& load : loads_) AddTo(&mean_, load);
  mean_ = Times(mean_, 1.0f / layout.num_ranks);
  for (auto& held : held_) held.reserve(layout.slots_per_rank);
}

template <int kGroups>
void EplbSearch<kGroups>::Start(std::span<const uint32_t> experts) {
  CHECK_EQ(experts.size(), layout_.num_slots());
  Clear();
  for (uint32_t s = 0; s < experts.size(); ++s) {
    Add(layout_.rank_of(s), experts[s]);
  }
  CountCopies();
  UpdateLoads();
}

template <int kGroups>
void EplbSearch<kGroups>::MoveCopies() {
  std::vector<float> heat(layout_.num_experts);
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    for (int g = 0; g < kGroups; ++g) {
      if (mean_[g] > 0) heat[e] = std::max(heat[e], loads_[e][g] / mean_[g]);
    }
  }
  std::vector<uint32_t> wanted = copies_;
  for (uint32_t moved = 0; moved < layout_.num_slots(); ++moved) {
    const auto hot = [&](uint32_t e) {
      return wanted[e] < layout_.num_ranks ? heat[e] / wanted[e] : -1.0f;
    };
    const auto cold = [&](uint32_t e) {
      return wanted[e] > 1 ? heat[e] / (wanted[e] - 1) : 1e30f;
    };
    uint32_t to = 0, from = 0;
    for (uint32_t e = 1; e < layout_.num_experts; ++e) {
      if (hot(e) > hot(to)) to = e;
      if (cold(e) < cold(from)) from = e;
    }
    if (!(hot(to) > kCopyGain * cold(from))) break;
    ++wanted[to];
    --wanted[from];
  }
  // Copies in excess leave the fullest of their ranks.
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    for (; copies_[e] > wanted[e]; --copies_[e]) {
      uint32_t fullest = layout_.num_ranks;
      for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
        if (!Holds(r, e)) continue;
        if (fullest == layout_.num_ranks ||
            Sum(rank_loads_[r]) > Sum(rank_loads_[fullest])) {
          fullest = r;
        }
      }
      auto& held = held_[fullest];
      Remove(fullest, std::find(held.begin(), held.end(), e) - held.begin());
    }
  }
  const std::vector<uint32_t> before = std::exchange(copies_, wanted);
  UpdateLoads();
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    for (uint32_t c = before[e]; c < wanted[e]; ++c) Place(e);
  }
  UpdateLoads();
}

template <int kGroups>
void EplbSearch<kGroups>::PackAnew() {
  copies_ = CopyGiver<kGroups>(layout_, loads_)
                .Give(layout_.num_slots() - layout_.num_experts);
  Clear();
  UpdateLoads();
  std::vector<std::pair<float, uint32_t>> falling(layout_.num_experts);
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    falling[e] = {-Sum(copy_loads_[e]), e};
  }
  std::sort(falling.begin(), falling.end());
  for (const auto& [load, expert] : falling) {
    for (uint32_t c = 0; c < copies_[expert]; ++c) Place(expert);
  }
  UpdateLoads();
}

template <int kGroups>
void EplbSearch<kGroups>::Place(uint32_t expert) {
  uint32_t best = layout_.num_ranks;
  float best_cost = 0;
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (held_[r].size() == layout_.slots_per_rank || Holds(r, expert)) continue;
    const float cost =
        kGroups == 1 ? rank_loads_[r][0] : Dot(rank_loads_[r], loads_[expert]);
    if (best == layout_.num_ranks || cost < best_cost) {
      best = r;
      best_cost = cost;
    }
  }
  if (best == layout_.num_ranks) return MakeRoom(expert);
  Add(best, expert);
  AddTo(&rank_loads_[best], copy_loads_[expert]);
}

// Each rank with room holds the expert. Some full rank does not, and has an
// expert that a rank with room lacks, for that has fewer: it moves there.
template <int kGroups>
void EplbSearch<kGroups>::MakeRoom(uint32_t expert) {
  uint32_t roomy = 0;
  while (held_[roomy].size() == layout_.slots_per_rank) ++roomy;
  uint32_t full = 0;
  while (Holds(full, expert)) ++full;
  uint32_t index = 0;
  while (Holds(roomy, held_[full][index])) ++index;
  const uint32_t moved = held_[full][index];
  Remove(full, index);
  Add(roomy, moved);
  Add(full, expert);
  UpdateLoads();
}

template <int kGroups>
void EplbSearch<kGroups>::Improve(double target_ratio,
                                  const std::function<bool()>& time_left) {
  std::vector<uint8_t> stuck(layout_.num_ranks, 0);
  while (Ratio() > target_ratio && time_left()) {
    uint32_t fullest = layout_.num_ranks;
    for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
      if (stuck[r] != 0 || excess_[r] <= 0) continue;
      if (fullest == layout_.num_ranks || excess_[r] > excess_[fullest]) {
        fullest = r;
      }
    }
    if (fullest == layout_.num_ranks) break;
    if (SwapOneOf(fullest)) {
      std::fill(stuck.begin(), stuck.end(), 0);
    } else {
      stuck[fullest] = 1;
    }
  }
  UpdateLoads();
}

// Partners are tried first where this rank's full groups are emptiest.
template <int kGroups>
bool EplbSearch<kGroups>::SwapOneOf(uint32_t rank) {
  Load over;
  for (int g = 0; g < kGroups; ++g) {
    over[g] = std::max(0.0f, rank_loads_[rank][g] - mean_[g]);
  }
  std::vector<std::pair<float, uint32_t>> partners;
  partners.reserve(layout_.num_ranks);
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (r != rank) partners.push_back({Dot(over, rank_loads_[r]), r});
  }
  const size_t first = std::min(partners.size(), kFirstPartners);
  std::partial_sort(partners.begin(), partners.begin() + first, partners.end());
  Swap best;
  best.gain = kLeastGain * excess_[rank];
  const float least = best.gain;
  for (size_t i = 0; i < partners.size(); ++i) {
    if (i >= first && best.gain > least) break;
    FindSwap(rank, partners[i].second, &best);
  }
  if (best.gain <= least) return false;
  Apply(rank, best);
  return true;
}

template <int kGroups>
void EplbSearch<kGroups>::FindSwap(uint32_t rank_a, uint32_t rank_b,
                                   Swap* best) const {
  const float before = excess_[rank_a] + excess_[rank_b];
  for (uint32_t i = 0; i < held_[rank_a].size(); ++i) {
    const uint32_t expert_a = held_[rank_a][i];
    if (Holds(rank_b, expert_a)) continue;
    for (uint32_t j = 0; j < held_[rank_b].size(); ++j) {
      const uint32_t expert_b = held_[rank_b][j];
      Load a = rank_loads_[rank_a], b = rank_loads_[rank_b];
      for (int g = 0; g < kGroups; ++g) {
        const float d = copy_loads_[expert_b][g] - copy_loads_[expert_a][g];
        a[g] += d;
        b[g] -= d;
      }
      const float gain = before - Excess(a) - Excess(b);
      if (gain <= best->gain || Holds(rank_a, expert_b)) continue;
      *best = {rank_b, i, j, gain};
    }
  }
}

template <int kGroups>
void EplbSearch<kGroups>::Apply(uint32_t rank_a, const Swap& swap) {
  const uint32_t rank_b = swap.rank_b;
  const uint32_t expert_a = held_[rank_a][swap.index_a];
  const uint32_t expert_b = held_[rank_b][swap.index_b];
  Remove(rank_a, swap.index_a);
  Remove(rank_b, swap.index_b);
  Add(rank_a, expert_b);
  Add(rank_b, expert_a);
  for (int g = 0; g < kGroups; ++g) {
    const float d = copy_loads_[expert_b][g] - copy_loads_[expert_a][g];
    rank_loads_[rank_a][g] += d;
    rank_loads_[rank_b][g] -= d;
  }
  excess_[rank_a] = Excess(rank_loads_[rank_a]);
  excess_[rank_b] = Excess(rank_loads_[rank_b]);
}

template <int kGroups>
double EplbSearch<kGroups>::Ratio() const {
  Load most = rank_loads_[0];
  for (const Load& load : rank_loads_) MaxTo(&most, load);
  return Sum(most) / Sum(mean_);
}

template <int kGroups>
void EplbSearch<kGroups>::AlignRanks(std::span<const uint32_t> present) {
  // Pairs of (experts in common, present rank, rank here), most first: greedy.
  std::vector<uint32_t> num_common(layout_.num_ranks);
  std::vector<std::array<uint32_t, 3>> pairs;
  for (uint32_t old = 0; old < layout_.num_ranks; ++old) {
    const auto had = present.subspan(size_t{old} * layout_.slots_per_rank,
                                     layout_.slots_per_rank);
    for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
      const uint32_t common = std::count_if(
          had.begin(), had.end(), [&](uint32_t e) { return Holds(r, e); });
      pairs.push_back({layout_.slots_per_rank - common, old, r});
    }
  }
  std::sort(pairs.begin(), pairs.end());
  std::vector<uint32_t> rank_of(layout_.num_ranks, layout_.num_ranks);
  std::vector<uint8_t> taken(layout_.num_ranks, 0);
  for (const auto& [unlike, old, r] : pairs) {
    if (rank_of[old] != layout_.num_ranks || taken[r] != 0) continue;
    rank_of[old] = r;
    taken[r] = 1;
  }
  const std::vector<std::vector<uint32_t>> held = held_;
  Clear();
  for (uint32_t old = 0; old < layout_.num_ranks; ++old) {
    for (const uint32_t e : held[rank_of[old]]) Add(old, e);
  }
  UpdateLoads();
}

template <int kGroups>
std::vector<uint32_t> EplbSearch<kGroups>::Experts(
    std::span<const uint32_t> present) const {
  std::vector<uint32_t> experts(present.begin(), present.end());
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    const auto slots = std::span<uint32_t>(experts).subspan(
        size_t{r} * layout_.slots_per_rank, layout_.slots_per_rank);
    std::vector<uint32_t> came;
    for (const uint32_t e : held_[r]) {
      if (std::find(slots.begin(), slots.end(), e) == slots.end()) {
        came.push_back(e);
      }
    }
    for (uint32_t& e : slots) {
      if (Holds(r, e)) continue;
      e = came.back();
      came.pop_back();
    }
  }
  return experts;
}

template <int kGroups>
void EplbSearch<kGroups>::Clear() {
  for (auto& held : held_) held.clear();
  std::fill(holds_.begin(), holds_.end(), 0);
}

template <int kGroups>
void EplbSearch<kGroups>::Add(uint32_t rank, uint32_t expert) {
  held_[rank].push_back(expert);
  holds_[size_t{rank} * layout_.num_experts + expert] = 1;
}

template <int kGroups>
void EplbSearch<kGroups>::Remove(uint32_t rank, uint32_t index) {
  auto& held = held_[rank];
  holds_[size_t{rank} * layout_.num_experts + held[index]] = 0;
  held[index] = held.back();
  held.pop_back();
}

template <int kGroups>
void EplbSearch<kGroups>::CountCopies() {
  std::fill(copies_.begin(), copies_.end(), 0);
  for (const auto& held : held_) {
    for (const uint32_t e : held) ++copies_[e];
  }
}

template <int kGroups>
void EplbSearch<kGroups>::UpdateLoads() {
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    copy_loads_[e] = Times(loads_[e], 1.0f / copies_[e]);
  }
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    rank_loads_[r] = {};
    for (const uint32_t e : held_[r]) AddTo(&rank_loads_[r], copy_loads_[e]);
    excess_[r] = Excess(rank_loads_[r]);
  }
}

template <int kGroups>
float EplbSearch<kGroups>::Excess(const Load& load) const {
  Load square;
  for (int g = 0; g < kGroups; ++g) {
    const float over = std::max(0.0f, load[g] - mean_[g]);
    square[g] = over * over;
  }
  return Sum(square);
}

template class EplbSearch<1>;
template class EplbSearch<16>;

}  // namespace baton
