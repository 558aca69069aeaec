// Expert routing of one token.
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/route_experts.h"

namespace baton::BATON_ISA_NAMESPACE {
namespace {

// Ordered like the floats (both zeros alike), as signed integers: so that even
// a NaN has its place, and what is masked or taken can lie below all floats.
constexpr int32_t kTaken = INT32_MIN;
constexpr int32_t kMasked = INT32_MIN + 1;

BATON_INLINE I32x16 SelectionKeys(F32x16 x) {
  return Max(OrderedBits(x), Set(kMasked));
}

// The index of the largest of keys[0, n), the lowest if several, which becomes
// kTaken. keys has kTaken from n up to a multiple of 16.
BATON_INLINE int TakeLargest(int32_t* keys, int n) {
  I32x16 best = Set(kTaken);
  for (int i = 0; i < n; i += 16) best = Max(best, Load(keys + i));
  const I32x16 largest = Set(MaxLane(best));
  for (int i = 0; i < n; i += 16) {
    const uint32_t found = MaskBits(Load(keys + i) == largest);
    if (found == 0) continue;
    const int index = i + __builtin_ctz(found);
    keys[index] = kTaken;
    return index;
  }
  return 0;
}

BATON_INLINE void FillScores(const RouteRow& row, float* scores) {
  const int n = row.num_experts;
  if (row.options->scoring == ScoringFunction::kSigmoid) {
    for (int i = 0; i < n; i += 16) {
      const F32x16 x = LoadPartial(row.logits + i, LanesFrom(i, n));
      Store(scores + i, Set(1.0f) / OnePlusExpOfMinus(x));
    }
    return;
  }
  const F32x16 lowest = Set(-__builtin_inff());
  F32x16 max = lowest;
  for (int i = 0; i < n; i += 16) {
    const int lanes = LanesFrom(i, n);
    const M16 valid = FirstLanes(lanes);
    max = Max(max, Select(valid, LoadPartial(row.logits + i, lanes), lowest));
  }
  max = Set(MaxLane(max));
  F32x16 sum = Set(0.0f);
  for (int i = 0; i < n; i += 16) {
    const int lanes = LanesFrom(i, n);
    const F32x16 e = Exp(LoadPartial(row.logits + i, lanes) - max);
    const F32x16 kept = Select(FirstLanes(lanes), e, Set(0.0f));
    Store(scores + i, kept);
    sum = sum + kept;
  }
  const F32x16 total = Set(Sum(sum));
  for (int i = 0; i < n; i += 16) {
    Store(scores + i, Load(scores + i) / total);
  }
}

// A group's score: its largest selection value, or the sum of its two largest.
BATON_INLINE float GroupScore(const float* values, int n, bool sum_of_two) {
  float first = -__builtin_inff();
  float second = first;
  for (int i = 0; i < n; ++i) {
    const float lower = values[i] < first ? values[i] : first;
    first = values[i] > first ? values[i] : first;
    second = lower > second ? lower : second;
  }
  return sum_of_two && n > 1 ? first + second : first;
}

// Masks the keys of all groups but the best.
BATON_INLINE void MaskGroups(const RoutingOptions& options,
                             const float* selection, int num_experts,
                             int32_t* keys) {
  const int size = num_experts / options.num_groups;
  float scores[kMaxRoutedExperts];
  int32_t group_keys[kMaxRoutedExperts];
  for (int g = 0; g < options.num_groups; ++g) {
    scores[g] = GroupScore(selection + g * size, size,
                           options.method == RoutingMethod::kNoAuxTc);
  }
  for (int g = 0; g < options.num_groups; g += 16) {
    const int lanes = LanesFrom(g, options.num_groups);
    Store(group_keys + g,
          Select(FirstLanes(lanes),
                 SelectionKeys(LoadPartial(scores + g, lanes)), Set(kTaken)));
  }
  for (int i = 0; i < options.num_kept_groups; ++i) {
    TakeLargest(group_keys, options.num_groups);
  }
  for (int g = 0; g < options.num_groups; ++g) {
    if (group_keys[g] == kTaken) continue;
    for (int i = 0; i < size; ++i) keys[g * size + i] = kMasked;
  }
}

BATON_INLINE void ScaleWeights(const RoutingOptions& options, float* weights) {
  float divisor = 1.0f;
  if (options.normalize) {
    float sum = 0.0f;
    for (int k = 0; k < options.top_k; ++k) sum = sum + weights[k];
    divisor = sum + 1e-20f;
  }
  for (int k = 0; k < options.top_k; ++k) {
    weights[k] = weights[k] / divisor * options.scaling_factor;
  }
}

}  // namespace

void RouteExpertsKernel(const RouteRow& row) {
  const RoutingOptions& options = *row.options;
  const int n = row.num_experts;
  float scores[kMaxRoutedExperts];
  float selection[kMaxRoutedExperts];
  int32_t keys[kMaxRoutedExperts];
  FillScores(row, scores);
  for (int i = 0; i < n; i += 16) {
    const int lanes = LanesFrom(i, n);
    F32x16 value = Load(scores + i);
    if (options.method == RoutingMethod::kNoAuxTc) {
      value = value + LoadPartial(options.bias + i, lanes);
    }
    Store(selection + i, value);
    Store(keys + i,
          Select(FirstLanes(lanes), SelectionKeys(value), Set(kTaken)));
  }
  if (options.method != RoutingMethod::kGreedy) {
    MaskGroups(options, selection, n, keys);
  }
  for (int k = 0; k < options.top_k; ++k) {
    const int expert = TakeLargest(keys, n);
    row.experts[k] = expert;
    row.weights[k] = scores[expert];
  }
  ScaleWeights(options, row.weights);
}

}  // namespace baton::BATON_ISA_NAMESPACE
