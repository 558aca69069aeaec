#include "engine/eplb_search.h"

#include <algorithm>
#include <numeric>

#include "base/logging.h"

namespace baton {
namespace {

// A copy goes from a cold expert to a hot one if the hot one's load per replica
// is this many times what the cold one's becomes.
constexpr float kCopyGain = 1.2f;
// Ranks that a full rank looks at first for a partner.
constexpr size_t kFirstPartners = 8;
// Changes that lower less than this of the full rank's excess are not worth it.
constexpr float kLeastGain = 1e-3f;
// Below these shares of all ranks' excess, and of the mean's square, they may
// be rounding, and the search go in circles.
constexpr float kExcessRounding = 1e-5f;
constexpr float kLoadRounding = 1e-9f;

}  // namespace

template <size_t kGroups>
EplbSearch<kGroups>::EplbSearch(const ExpertLayout& layout,
                                const std::vector<Load>& loads)
    : layout_(layout),
      loads_(loads),
      copies_(layout.num_experts),
      copy_loads_(layout.num_experts),
      held_(layout.num_slots()),
      num_held_(layout.num_ranks),
      holds_(size_t{layout.num_ranks} * layout.num_experts),
      rank_loads_(layout.num_ranks),
      excess_(layout.num_ranks),
      more_(layout.num_experts),
      fewer_(layout.num_experts),
      losing_(layout.num_slots()) {
  CHECK_EQ(loads.size(), layout.num_experts);
  for (const Load& load : loads_) AddTo(&mean_, load);
  mean_ = Times(mean_, 1.0f / layout.num_ranks);
}

template <size_t kGroups>
void EplbSearch<kGroups>::Start(std::span<const uint32_t> experts) {
  CHECK_EQ(experts.size(), layout_.num_slots());
  Clear();
  std::fill(copies_.begin(), copies_.end(), 0);
  for (uint32_t s = 0; s < experts.size(); ++s) {
    Add(layout_.rank_of(s), experts[s]);
    ++copies_[experts[s]];
  }
  UpdateLoads();
}

template <size_t kGroups>
void EplbSearch<kGroups>::MoveCopies() {
  std::vector<float> heat(layout_.num_experts);
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    for (size_t g = 0; g < kGroups; ++g) {
      if (mean_[g] > 0) heat[e] = std::max(heat[e], loads_[e][g] / mean_[g]);
    }
  }
  std::vector<uint32_t> wanted = copies_;
  std::vector<float> hot(layout_.num_experts), cold(layout_.num_experts);
  const auto update = [&](uint32_t e) {
    hot[e] = wanted[e] < layout_.num_ranks ? heat[e] / wanted[e] : -1.0f;
    cold[e] = wanted[e] > 1 ? heat[e] / (wanted[e] - 1) : 1e30f;
  };
  for (uint32_t e = 0; e < layout_.num_experts; ++e) update(e);
  for (uint32_t moved = 0; moved < layout_.num_slots(); ++moved) {
    const uint32_t to = std::max_element(hot.begin(), hot.end()) - hot.begin();
    const uint32_t from =
        std::min_element(cold.begin(), cold.end()) - cold.begin();
    if (!(hot[to] > kCopyGain * cold[from])) break;
    ++wanted[to];
    --wanted[from];
    update(to);
    update(from);
  }
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    for (uint32_t c = wanted[e]; c < copies_[e]; ++c) RemoveFromFullest(e);
  }
  copies_.swap(wanted);
  UpdateLoads();
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    for (uint32_t c = wanted[e]; c < copies_[e]; ++c) PlaceCopy(e);
  }
  UpdateLoads();
}

template <size_t kGroups>
void EplbSearch<kGroups>::Pack(const std::vector<uint32_t>& copies) {
  copies_ = copies;
  Clear();
  UpdateLoads();
  std::vector<std::pair<float, uint32_t>> falling(layout_.num_experts);
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    falling[e] = {-Sum(copy_loads_[e]), e};
  }
  std::sort(falling.begin(), falling.end());
  for (const auto& [load, expert] : falling) {
    for (uint32_t c = 0; c < copies_[expert]; ++c) PlaceCopy(expert);
  }
  UpdateLoads();
}

template <size_t kGroups>
void EplbSearch<kGroups>::Improve(double target_ratio,
                                  const std::function<bool()>& time_left) {
  std::vector<uint8_t> stuck(layout_.num_ranks, 0);
  bool changed = false;             // Since ranks were last found stuck.
  bool replacement_failed = false;  // Since the last change.
  // The sum of squares may fall while the greatest load rises: keep the best.
  // (Every rank is full, so held_ is a placement.)
  std::vector<uint32_t> best = held_;
  double best_ratio = Ratio();
  while (best_ratio > target_ratio && time_left()) {
    const uint32_t rank = FullestBut(stuck);
    if (rank == layout_.num_ranks) {
      if (!changed) break;
      std::fill(stuck.begin(), stuck.end(), 0);
      changed = false;
      continue;
    }
    if (!TrySwap(rank)) {
      if (replacement_failed || !TryReplacement(rank)) {
        replacement_failed = true;
        stuck[rank] = 1;
        continue;
      }
    }
    changed = true;
    replacement_failed = false;
    if (Ratio() >= best_ratio) continue;
    best_ratio = Ratio();
    best = held_;
  }
  Start(best);
}

template <size_t kGroups>
uint32_t EplbSearch<kGroups>::FullestBut(
    const std::vector<uint8_t>& stuck) const {
  uint32_t fullest = layout_.num_ranks;
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (stuck[r] != 0 || excess_[r] <= 0) continue;
    if (fullest == layout_.num_ranks || excess_[r] > excess_[fullest]) {
      fullest = r;
    }
  }
  return fullest;
}

template <size_t kGroups>
double EplbSearch<kGroups>::Ratio() const {
  Load most = rank_loads_[0];
  for (const Load& load : rank_loads_) MaxTo(&most, load);
  return double{Sum(most)} / Sum(mean_);
}

// Sums of the differences' squares: convex in the load.
template <size_t kGroups>
float EplbSearch<kGroups>::Excess(const Load& load) const {
  Load square;
  for (size_t g = 0; g < kGroups; ++g) {
    const float over = std::max(0.0f, load[g] - mean_[g]);
    square[g] = over * over;
  }
  return Sum(square);
}

template <size_t kGroups>
float EplbSearch<kGroups>::LeastGain(uint32_t rank) const {
  const float all = std::accumulate(excess_.begin(), excess_.end(), 0.0f);
  return std::max({kLeastGain * excess_[rank], kExcessRounding * all,
                   kLoadRounding * Dot(mean_, mean_)});
}

template <size_t kGroups>
GroupLoad<kGroups> EplbSearch<kGroups>::Slope(uint32_t rank) const {
  Load slope;
  for (size_t g = 0; g < kGroups; ++g) {
    slope[g] = 2 * std::max(0.0f, rank_loads_[rank][g] - mean_[g]);
  }
  return slope;
}

template <size_t kGroups>
void EplbSearch<kGroups>::Clear() {
  std::fill(num_held_.begin(), num_held_.end(), 0);
  std::fill(holds_.begin(), holds_.end(), 0);
}

template <size_t kGroups>
void EplbSearch<kGroups>::Add(uint32_t rank, uint32_t expert) {
  DCHECK(num_held_[rank] < layout_.slots_per_rank);
  held_[size_t{rank} * layout_.slots_per_rank + num_held_[rank]++] = expert;
  holds_[size_t{rank} * layout_.num_experts + expert] = 1;
}

template <size_t kGroups>
void EplbSearch<kGroups>::Remove(Place place) {
  uint32_t* held = &held_[size_t{place.rank} * layout_.slots_per_rank];
  holds_[size_t{place.rank} * layout_.num_experts + held[place.index]] = 0;
  held[place.index] = held[--num_held_[place.rank]];
}

template <size_t kGroups>
void EplbSearch<kGroups>::RemoveFromFullest(uint32_t expert) {
  uint32_t fullest = layout_.num_ranks;
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (!Holds(r, expert)) continue;
    if (fullest == layout_.num_ranks ||
        Sum(rank_loads_[r]) > Sum(rank_loads_[fullest])) {
      fullest = r;
    }
  }
  const auto held = Held(fullest);
  const auto index = std::find(held.begin(), held.end(), expert) - held.begin();
  Remove({fullest, static_cast<uint32_t>(index)});
}

template <size_t kGroups>
void EplbSearch<kGroups>::UpdateLoads() {
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    copy_loads_[e] = Times(loads_[e], 1.0f / copies_[e]);
  }
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    rank_loads_[r] = {};
    for (const uint32_t e : Held(r)) AddTo(&rank_loads_[r], copy_loads_[e]);
    excess_[r] = Excess(rank_loads_[r]);
  }
}

// After copies_[expert] changed, for the ranks that hold it.
template <size_t kGroups>
void EplbSearch<kGroups>::UpdateLoadsOf(uint32_t expert) {
  copy_loads_[expert] = Times(loads_[expert], 1.0f / copies_[expert]);
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (!Holds(r, expert)) continue;
    rank_loads_[r] = {};
    for (const uint32_t e : Held(r)) AddTo(&rank_loads_[r], copy_loads_[e]);
    excess_[r] = Excess(rank_loads_[r]);
  }
}

template <size_t kGroups>
void EplbSearch<kGroups>::PlaceCopy(uint32_t expert) {
  uint32_t best = layout_.num_ranks;
  float best_cost = 0;
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (num_held_[r] == layout_.slots_per_rank || Holds(r, expert)) continue;
    const float cost =
        kGroups == 1 ? rank_loads_[r][0] : Dot(rank_loads_[r], loads_[expert]);
    if (best == layout_.num_ranks || cost < best_cost) {
      best = r;
      best_cost = cost;
    }
  }
  if (best == layout_.num_ranks) {
    MakeRoom(expert);
    return;
  }
  Add(best, expert);
  AddTo(&rank_loads_[best], copy_loads_[expert]);
}

// Each rank with room holds the expert. Some full rank does not, and has an
// expert that a rank with room lacks, for that has fewer: it moves there.
template <size_t kGroups>
void EplbSearch<kGroups>::MakeRoom(uint32_t expert) {
  uint32_t roomy = 0;
  while (num_held_[roomy] == layout_.slots_per_rank) ++roomy;
  uint32_t full = 0;
  while (Holds(full, expert)) ++full;
  uint32_t index = 0;
  while (Holds(roomy, Held(full)[index])) ++index;
  const uint32_t moved = Held(full)[index];
  Remove({full, index});
  Add(roomy, moved);
  Add(full, expert);
  UpdateLoads();
}

// Partners are tried first that are emptiest where this rank is full.
template <size_t kGroups>
bool EplbSearch<kGroups>::TrySwap(uint32_t rank) {
  const Load over = Slope(rank);
  partners_.clear();
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    if (r != rank) partners_.push_back({Dot(over, rank_loads_[r]), r});
  }
  const size_t first = std::min(partners_.size(), kFirstPartners);
  std::partial_sort(partners_.begin(), partners_.begin() + first,
                    partners_.end());
  Swap best;
  best.gain = LeastGain(rank);
  const float least = best.gain;
  for (size_t i = 0; i < partners_.size(); ++i) {
    if (i >= first && best.gain > least) break;
    FindSwap(rank, partners_[i].second, &best);
  }
  if (best.gain <= least) return false;
  Apply(best);
  return true;
}

// The excess is convex, so a swap gains at most what its slope promises: the
// scalar product of the slope and the difference of loads. Most pairs need no
// more than that.
template <size_t kGroups>
void EplbSearch<kGroups>::FindSwap(uint32_t rank_a, uint32_t rank_b,
                                   Swap* best) const {
  const float before = excess_[rank_a] + excess_[rank_b];
  if (before <= best->gain) return;
  const Load load_a = rank_loads_[rank_a], load_b = rank_loads_[rank_b];
  const Load slope_a = Slope(rank_a), slope_b = Slope(rank_b);
  Load slope;
  for (size_t g = 0; g < kGroups; ++g) {
    slope[g] = slope_a[g] - slope_b[g];
  }
  const auto held_a = Held(rank_a), held_b = Held(rank_b);
  for (uint32_t i = 0; i < held_a.size(); ++i) {
    if (Holds(rank_b, held_a[i])) continue;
    const Load& from_a = copy_loads_[held_a[i]];
    const float promise_a = Dot(slope, from_a);
    for (uint32_t j = 0; j < held_b.size(); ++j) {
      const Load& from_b = copy_loads_[held_b[j]];
      if (promise_a - Dot(slope, from_b) <= best->gain) continue;
      Load a, b;
      for (size_t g = 0; g < kGroups; ++g) {
        const float d = from_b[g] - from_a[g];
        a[g] = load_a[g] + d;
        b[g] = load_b[g] - d;
      }
      const float gain = before - Excess(a) - Excess(b);
      if (gain <= best->gain || Holds(rank_a, held_b[j])) continue;
      *best = {{rank_a, i}, {rank_b, j}, gain};
    }
  }
}

template <size_t kGroups>
void EplbSearch<kGroups>::Apply(const Swap& swap) {
  const uint32_t expert_a = At(swap.a), expert_b = At(swap.b);
  Remove(swap.a);
  Remove(swap.b);
  Add(swap.a.rank, expert_b);
  Add(swap.b.rank, expert_a);
  for (size_t g = 0; g < kGroups; ++g) {
    const float d = copy_loads_[expert_b][g] - copy_loads_[expert_a][g];
    rank_loads_[swap.a.rank][g] += d;
    rank_loads_[swap.b.rank][g] -= d;
  }
  excess_[swap.a.rank] = Excess(rank_loads_[swap.a.rank]);
  excess_[swap.b.rank] = Excess(rank_loads_[swap.b.rank]);
}

// As for swaps, slopes rule most candidates out. A rank's slope is what its
// excess gains by each unit of load less, to first order, and no more than that
// in all. So a slot's copy of v, of n, that gives way to one of u, of m, gains
// at most
//   more_[u] - fewer_[v] + slope * v / (n - 1) - slope * u / (m + 1)
// with the slope of the slot's rank, u and v being the experts' loads.
template <size_t kGroups>
bool EplbSearch<kGroups>::TryReplacement(uint32_t rank) {
  ListPromises();
  Replacement best;
  best.gain = LeastGain(rank);
  const float least = best.gain;
  for (uint32_t e = 0; e < layout_.num_experts; ++e) {
    if (Holds(rank, e) || copies_[e] == layout_.num_ranks) continue;
    const float promise =
        more_[e] - Dot(Slope(rank), loads_[e]) / (copies_[e] + 1);
    for (uint32_t i = 0; i < num_held_[rank]; ++i) {
      Consider({rank, i}, e, promise, &best);
    }
  }
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    for (uint32_t i = 0; i < num_held_[r]; ++i) {
      for (const uint32_t e : Held(rank)) {
        if (!Holds(r, e)) Consider({r, i}, e, more_[e], &best);
      }
    }
  }
  if (best.gain <= least) return false;
  Apply(best);
  return true;
}

template <size_t kGroups>
void EplbSearch<kGroups>::ListPromises() {
  std::fill(fewer_.begin(), fewer_.end(), 0);
  std::fill(more_.begin(), more_.end(), 0);
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    const Load slope = Slope(r);
    for (uint32_t i = 0; i < num_held_[r]; ++i) {
      const uint32_t e = At({r, i});
      const float n = copies_[e], promise = Dot(slope, loads_[e]);
      more_[e] += promise * (1 / n - 1 / (n + 1));
      if (n == 1) continue;
      fewer_[e] += promise * (1 / (n - 1) - 1 / n);
      losing_[r * layout_.slots_per_rank + i] = promise / (n - 1);
    }
  }
}

// Every rank that holds either expert changes. `promise`: what `expert` adds.
template <size_t kGroups>
void EplbSearch<kGroups>::Consider(Place place, uint32_t expert, float promise,
                                   Replacement* best) const {
  const uint32_t old = At(place);
  if (copies_[old] == 1) return;
  const float losing =
      losing_[place.rank * layout_.slots_per_rank + place.index] - fewer_[old];
  if (losing + promise <= best->gain) return;
  const Load fewer = Times(loads_[old], 1.0f / (copies_[old] - 1));
  const Load more = Times(loads_[expert], 1.0f / (copies_[expert] + 1));
  float gain = 0;
  for (uint32_t r = 0; r < layout_.num_ranks; ++r) {
    const bool holds_old = Holds(r, old), holds_new = Holds(r, expert);
    if (!holds_old && !holds_new) continue;
    Load load = rank_loads_[r];
    for (size_t g = 0; g < kGroups; ++g) {
      if (holds_old) load[g] += fewer[g] - copy_loads_[old][g];
      if (holds_new) load[g] += more[g] - copy_loads_[expert][g];
      if (r == place.rank) load[g] += more[g] - fewer[g];
    }
    gain += excess_[r] - Excess(load);
  }
  if (gain > best->gain) *best = {place, expert, gain};
}

template <size_t kGroups>
void EplbSearch<kGroups>::Apply(const Replacement& replacement) {
  const uint32_t old = At(replacement.place);
  Remove(replacement.place);
  Add(replacement.place.rank, replacement.expert);
  --copies_[old];
  ++copies_[replacement.expert];
  UpdateLoadsOf(old);
  UpdateLoadsOf(replacement.expert);
}

template class EplbSearch<1>;
template class EplbSearch<16>;

}  // namespace baton
