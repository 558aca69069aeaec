// A group's loads, merged from what its processes say.
#ifndef BATON_ENGINE_EXPERT_LOAD_COLLECTOR_H_
#define BATON_ENGINE_EXPERT_LOAD_COLLECTOR_H_

#include <cstdint>
#include <vector>

#include "engine/expert_placement.h"
#include "engine/rebalance_message.h"

namespace baton {

// The leader's. A round is complete once each process has told each layer; who
// tells of the next round ends it. Owned by the engines' thread.
class ExpertLoadCollector final {
 public:
  ExpertLoadCollector(const ExpertLayout& layout, uint32_t num_processes);

  // False, and nothing changed: of another round, again, or not the
  // shape that the layer's others have. REQUIRES: kLoads.
  bool Add(uint32_t process, const RebalanceMessage& message);
  bool complete() const { return num_missing_ == 0; }
  // The newest plan that is over for all of this round.
  uint64_t closed_plan() const;
  // Of each layer; the round is over then. REQUIRES: complete().
  std::vector<std::vector<uint32_t>> Take();

 private:
  void Start(uint64_t round);

  const ExpertLayout layout_;
  const uint32_t num_processes_;
  uint64_t round_ = 0;
  uint32_t num_missing_ = 0;
  std::vector<bool> is_here_;           // [layers, processes]
  std::vector<uint64_t> closed_plans_;  // Of each process.
  std::vector<std::vector<uint32_t>> loads_;
};

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_LOAD_COLLECTOR_H_
