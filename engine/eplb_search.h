// The search for one layer's placement: pack, mend, swap. EplbPlanner's own.
#ifndef BATON_ENGINE_EPLB_SEARCH_H_
#define BATON_ENGINE_EPLB_SEARCH_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/expert_placement.h"

namespace baton {

// A load in each of kGroups groups of steps. Instantiated for 1 and 16.
template <int kGroups>
using GroupLoad = std::array<float, kGroups>;

// Slots of a rank have no order here; Experts() gives them one. Every state
// between calls is a valid placement. Single-threaded; ties go to the lower
// expert or rank.
template <int kGroups>
class EplbSearch final {
 public:
  using Load = GroupLoad<kGroups>;

  // `loads`, a group load an expert. REQUIRES: the sum of each group positive.
  EplbSearch(const ExpertLayout& layout, std::span<const Load> loads);

  // Takes a placement as it is.
  void Start(std::span<const uint32_t> experts);
  // Gives copies of the coldest experts to the hottest where that pays well.
  void MoveCopies();
  // Forgets the placement: copies go where they lower the greatest load per
  // replica most, summed over groups; then the greatest load first, each to
  // the rank with room that is least loaded where the expert is loaded.
  void PackAnew();
  // Swaps two ranks' experts for the better: the rank with the greatest excess
  // over the mean with whichever ranks lower the sum of squared excesses most.
  // Until the ratio is `target_ratio`, no swap helps, or `time_left`, asked
  // before each swap, says no.
  void Improve(double target_ratio, const std::function<bool()>& time_left);

  // Sum over groups of the fullest rank's load, over that of the mean.
  double Ratio() const;
  // By slot; an expert that its rank had in `present` has the slot of then.
  std::vector<uint32_t> Experts(std::span<const uint32_t> present) const;
  // Renumbers the ranks so that most experts are where `present` has them.
  void AlignRanks(std::span<const uint32_t> present);

 private:
  struct Swap {
    uint32_t rank_b = 0;
    uint32_t index_a = 0;  // In the ranks' experts.
    uint32_t index_b = 0;
    float gain = 0;
  };

  bool Holds(uint32_t rank, uint32_t expert) const {
    return holds_[size_t{rank} * layout_.num_experts + expert] != 0;
  }
  void Clear();
  void Add(uint32_t rank, uint32_t expert);
  void Remove(uint32_t rank, uint32_t index);
  void CountCopies();
  void UpdateLoads();
  float Excess(const Load& load) const;
  // Copies of `expert` that have no slot yet.
  void Place(uint32_t expert);
  void MakeRoom(uint32_t expert);
  bool SwapOneOf(uint32_t rank);
  void FindSwap(uint32_t rank_a, uint32_t rank_b, Swap* best) const;
  void Apply(uint32_t rank_a, const Swap& swap);

  const ExpertLayout layout_;
  std::vector<Load> loads_;
  Load mean_ = {};                           // Of a rank.
  std::vector<uint32_t> copies_;             // By expert.
  std::vector<Load> copy_loads_;             // loads_ / copies_.
  std::vector<std::vector<uint32_t>> held_;  // By rank.
  std::vector<uint8_t> holds_;               // [ranks, experts]
  std::vector<Load> rank_loads_;
  std::vector<float> excess_;    // Squared, by rank.
  std::vector<uint32_t> order_;  // Scratch.
};

}  // namespace baton

#endif  // BATON_ENGINE_EPLB_SEARCH_H_
