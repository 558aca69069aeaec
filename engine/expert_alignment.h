// A plan says which experts are together on a rank; which rank that is, and in
// which order, is free, and chosen so that little moves.
#ifndef BATON_ENGINE_EXPERT_ALIGNMENT_H_
#define BATON_ENGINE_EXPERT_ALIGNMENT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/expert_placement.h"

namespace baton {

// All of one layer's experts, by slot, of a valid placement.

// `experts` with the ranks renumbered so that many are where `present` has
// them: the two ranks that have most in common first, and so on.
std::vector<uint32_t> AlignRanks(const ExpertLayout& layout,
                                 std::span<const uint32_t> present,
                                 std::span<const uint32_t> experts);

// `experts` in the order of `present`: what a rank had there has its slot of
// then; those that came take the others, in their order.
std::vector<uint32_t> AlignSlots(const ExpertLayout& layout,
                                 std::span<const uint32_t> present,
                                 std::span<const uint32_t> experts);

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_ALIGNMENT_H_
