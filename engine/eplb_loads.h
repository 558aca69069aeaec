// Loads by group of steps, and how many slots each expert gets. EplbPlanner's
// own.
#ifndef BATON_ENGINE_EPLB_LOADS_H_
#define BATON_ENGINE_EPLB_LOADS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/expert_placement.h"

namespace baton {

// A load in each of kGroups groups of steps; kGroups a power of two.
template <size_t kGroups>
using GroupLoad = std::array<float, kGroups>;

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

// Slots by expert. Each next one goes where it lowers the greatest load per
// replica most, summed over groups; of equals, to the greatest load per
// replica.
template <size_t kGroups>
std::vector<uint32_t> GreedyCopies(
    const ExpertLayout& layout, const std::vector<GroupLoad<kGroups>>& loads);

// As few slots to each hot expert as bring its load per replica to at most
// `threshold` of a rank's mean load; what slots remain, to the others, as
// above but by sums. Few large replicas pack better where so many of middling
// size do not pair up. Empty: there are not slots enough.
template <size_t kGroups>
std::vector<uint32_t> ThresholdCopies(
    const ExpertLayout& layout, const std::vector<GroupLoad<kGroups>>& loads,
    float threshold);

}  // namespace baton

#endif  // BATON_ENGINE_EPLB_LOADS_H_
