// The search for one layer's placement: pack, mend, improve. EplbPlanner's own.
#ifndef BATON_ENGINE_EPLB_SEARCH_H_
#define BATON_ENGINE_EPLB_SEARCH_H_

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/eplb_loads.h"
#include "engine/expert_placement.h"

namespace baton {

// What Improve() works towards is the sum over ranks and groups of the squared
// excess of load over the mean. Unlike the fullest rank's load, it falls with
// each step taken on any full rank.
//
// Every state between calls is a valid placement. Ties go to the lower expert
// or rank. Instantiated for 1 and 16 groups. Single-threaded.
template <size_t kGroups>
class EplbSearch final {
 public:
  using Load = GroupLoad<kGroups>;

  // REQUIRES: `loads` by expert, their sum positive; outlives this.
  EplbSearch(const ExpertLayout& layout, const std::vector<Load>& loads);

  // Takes a placement as it is.
  void Start(std::span<const uint32_t> experts);
  // Gives copies of the coldest experts to the hottest where that pays well.
  void MoveCopies();
  // Forgets the placement. Replicas go, the greatest load first, each to the
  // rank with room that is least loaded when the expert is loaded.
  // REQUIRES: slots by expert, as GreedyCopies gives them.
  void Pack(const std::vector<uint32_t>& copies);
  // The rank with the greatest excess swaps an expert with another rank's, or
  // where no swap helps, some slot's copy gives way to a copy of an expert that
  // is on this rank, or its own slot to another's. Until the ratio is
  // `target_ratio`, nothing helps, or `time_left`, asked before each change,
  // says no. Ends with the best ratio seen.
  void Improve(double target_ratio, const std::function<bool()>& time_left);

  // Sum over groups of the fullest rank's load, over that of the mean.
  double Ratio() const;
  // By slot, each rank's in no order. REQUIRES: every rank is full, as after
  // any of the above.
  const std::vector<uint32_t>& experts() const { return held_; }

 private:
  // Of one replica, in its rank's list.
  struct Place {
    uint32_t rank = 0;
    uint32_t index = 0;
  };
  struct Swap {
    Place a, b;
    float gain = 0;
  };
  // The slot's copy gives way to one of `expert`.
  struct Replacement {
    Place place;
    uint32_t expert = 0;
    float gain = 0;
  };

  bool Holds(uint32_t rank, uint32_t expert) const {
    return holds_[size_t{rank} * layout_.num_experts + expert] != 0;
  }
  std::span<const uint32_t> Held(uint32_t rank) const {
    return {&held_[size_t{rank} * layout_.slots_per_rank], num_held_[rank]};
  }
  uint32_t At(Place place) const { return Held(place.rank)[place.index]; }
  float Excess(const Load& load) const;
  Load Slope(uint32_t rank) const;  // Of the excess.
  float LeastGain(uint32_t rank) const;

  void Clear();
  void Add(uint32_t rank, uint32_t expert);
  void Remove(Place place);
  void RemoveFromFullest(uint32_t expert);
  void UpdateLoads();
  void UpdateLoadsOf(uint32_t expert);
  // A copy of `expert` that has no slot yet.
  void PlaceCopy(uint32_t expert);
  void MakeRoom(uint32_t expert);

  uint32_t FullestBut(const std::vector<uint8_t>& stuck) const;
  bool TrySwap(uint32_t rank);
  void FindSwap(uint32_t rank_a, uint32_t rank_b, Swap* best) const;
  void Apply(const Swap& swap);
  bool TryReplacement(uint32_t rank);
  void ListPromises();
  void Consider(Place place, uint32_t expert, float promise,
                Replacement* best) const;
  void Apply(const Replacement& replacement);

  const ExpertLayout layout_;
  const std::vector<Load>& loads_;
  Load mean_ = {};                // Of a rank.
  std::vector<uint32_t> copies_;  // By expert.
  std::vector<Load> copy_loads_;  // loads_ / copies_.
  std::vector<uint32_t> held_;    // [ranks, slots_per_rank], num_held_ of each
  std::vector<uint32_t> num_held_;  // By rank.
  std::vector<uint8_t> holds_;      // [ranks, experts]
  std::vector<Load> rank_loads_;
  std::vector<float> excess_;  // By rank: sum over groups of the squares.
  std::vector<std::pair<float, uint32_t>> partners_;  // TrySwap's own.
  // TryReplacement's own: what the ranks of an expert are promised by a copy
  // more, and threatened with by one less, and the slot's rank by losing its.
  std::vector<float> more_, fewer_, losing_;
};

}  // namespace baton

#endif  // BATON_ENGINE_EPLB_SEARCH_H_
