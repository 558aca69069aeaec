// How even the local ranks' loads are, step by step.
#ifndef BATON_ENGINE_RANK_LOAD_RATIO_H_
#define BATON_ENGINE_RANK_LOAD_RATIO_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace baton {

// Owned by the engines' thread. Holds as many steps as one rank is ahead of
// another.
class RankLoadRatio final {
 public:
  RankLoadRatio(uint32_t num_layers, uint32_t num_local_ranks);

  // A rank's oldest step is done, with so many rows in each of its slots:
  // [layers, slots_per_rank], or empty if nobody counted. If that was the
  // step's last rank: over all layers, the sum of the fullest rank's rows over
  // that of the mean rank's; nullopt too if there were none.
  std::optional<double> Add(uint32_t local_rank,
                            std::span<const uint32_t> rows);

 private:
  struct Step {
    std::vector<uint64_t> fullest;  // Of each layer.
    uint64_t sum = 0;
    uint32_t num_ranks = 0;
  };

  const uint32_t num_layers_;
  std::vector<uint64_t> ranks_done_;
  uint64_t num_done_ = 0;  // Steps of all ranks.
  std::deque<Step> steps_;
};

}  // namespace baton

#endif  // BATON_ENGINE_RANK_LOAD_RATIO_H_
