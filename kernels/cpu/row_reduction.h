// The largest value of a row, and the sum of its exponentials.
#ifndef BATON_KERNELS_CPU_ROW_REDUCTION_H_
#define BATON_KERNELS_CPU_ROW_REDUCTION_H_

#include "kernels/cpu/vector_math.h"

namespace baton::BATON_ISA_NAMESPACE {

inline constexpr int kLanes = 16;
inline constexpr float kMinusInfinity = -__builtin_inff();

BATON_INLINE bool IsFinite(float x) {
  return (BitsOf(x) & 0x7f800000u) != 0x7f800000u;
}

BATON_INLINE F32x16 LoadOr(float rest, const float* p, int lanes) {
  return Select(FirstLanes(lanes), LoadPartial(p, lanes), Set(rest));
}

BATON_INLINE float MaxOf(const float* x, int n) {
  F32x16 max[4] = {Set(kMinusInfinity), Set(kMinusInfinity),
                   Set(kMinusInfinity), Set(kMinusInfinity)};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) max[j] = Max(max[j], Load(x + i + j * kLanes));
  }
  for (; i < n; i += kLanes) {
    max[0] = Max(max[0], LoadOr(kMinusInfinity, x + i, LanesFrom(i, n)));
  }
  return MaxLane(Max(Max(max[0], max[1]), Max(max[2], max[3])));
}

// log(sum exp(x - max)): lane i mod 16, then the tree.
BATON_INLINE float LogSumExp(const float* x, int n, float max) {
  F32x16 sum = Set(0.0f);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = sum + Exp(Load(x + i) - Set(max));
  if (i < n) {
    const F32x16 rest = LoadOr(kMinusInfinity, x + i, n - i);
    sum = sum + Exp(rest - Set(max));
  }
  return FirstLane(Log(Set(Sum(sum))));
}

}  // namespace baton::BATON_ISA_NAMESPACE

#endif  // BATON_KERNELS_CPU_ROW_REDUCTION_H_
