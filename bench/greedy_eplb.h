// The published greedy placement (DeepSeek's EPLB), from its description: to
// measure EplbPlanner against.
#ifndef BATON_BENCH_GREEDY_EPLB_H_
#define BATON_BENCH_GREEDY_EPLB_H_

#include <cstdint>
#include <vector>

#include "engine/expert_placement.h"

namespace baton {

// The experts by slot for the experts' loads, summed over the window. Copies go
// one by one to the expert with the greatest load per replica; then replicas,
// greatest first, to the least loaded rank with room. A rank may get an expert
// twice, as there.
std::vector<uint32_t> GreedyPlacement(const ExpertLayout& layout,
                                      const std::vector<double>& loads);

}  // namespace baton

#endif  // BATON_BENCH_GREEDY_EPLB_H_
