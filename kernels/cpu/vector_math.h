// exp, log and what is made of them, over F32x16: own polynomials, so that
// every width, compiler and C library gives the same bits. Within about 2 units
// in the last place of the true value.
#ifndef BATON_KERNELS_CPU_VECTOR_MATH_H_
#define BATON_KERNELS_CPU_VECTOR_MATH_H_

#include "kernels/cpu/vector.h"

namespace baton::BATON_ISA_NAMESPACE {

inline constexpr float kLn2High = 0x1.62e430p-1f;   // float32(ln 2)
inline constexpr float kLn2Low = -0x1.05c610p-29f;  // ln 2 - kLn2High
inline constexpr float kSmallestNormal = 0x1p-126f;

// 0 where the result would be denormal (it costs CPUs a hundred cycles), +inf
// above 88.37, NaN of NaN.
BATON_INLINE F32x16 Exp(F32x16 x) {
  const F32x16 lowest = Set(-87.33f);
  const F32x16 highest = Set(88.37f);
  const F32x16 clamped = Min(highest, Max(lowest, x));
  // x = n ln 2 + r, |r| <= ln 2 / 2: adding 1.5 * 2^23 rounds to an integer.
  const F32x16 shift = Set(0x1.8p23f);
  const F32x16 shifted = Fma(clamped, Set(0x1.715476p0f), shift);
  const F32x16 n = shifted - shift;
  F32x16 r = Fma(n, Set(-kLn2High), clamped);
  r = Fma(n, Set(-kLn2Low), r);
  // e^r = 1 + r + r^2 q(r): minimax, relative error 3e-9.
  F32x16 q = Set(0.00138146116f);
  q = Fma(q, r, Set(0.00836871099f));
  q = Fma(q, r, Set(0.041668389f));
  q = Fma(q, r, Set(0.166665211f));
  q = Fma(q, r, Set(0.49999994f));
  const F32x16 y = Fma(r * r, q, r) + Set(1.0f);
  // n is in the low bits of `shifted`: move it to the exponent.
  const I32x16 scale = ShiftLeft<23>(Bits(shifted)) + Set(int32_t{127 << 23});
  const F32x16 exp = y * FromBits(scale);
  return Select(x < lowest, Set(0.0f),
                Select(highest < x, Set(__builtin_inff()), exp));
}

// Natural. REQUIRES: 0 < x < infinity; denormals too.
BATON_INLINE F32x16 Log(F32x16 x) {
  const M16 denormal = x < Set(kSmallestNormal);
  x = Select(denormal, x * Set(0x1p23f), x);
  // x = 2^e m, m in [sqrt 1/2, sqrt 2), f = m - 1.
  const I32x16 e = ShiftRightArithmetic<23>(Bits(x) - Set(int32_t{0x3f3504f3}));
  const F32x16 f = FromBits(Bits(x) - ShiftLeft<23>(e)) - Set(1.0f);
  const F32x16 n = ToFloat(e) - Select(denormal, Set(23.0f), Set(0.0f));
  // log(1 + f) = f - f^2 / 2 + f^3 q(f): minimax, relative error 6e-9.
  F32x16 q = Set(-0.0763458312f);
  q = Fma(q, f, Set(0.127616972f));
  q = Fma(q, f, Set(-0.131602079f));
  q = Fma(q, f, Set(0.142017439f));
  q = Fma(q, f, Set(-0.16623354f));
  q = Fma(q, f, Set(0.200012267f));
  q = Fma(q, f, Set(-0.250008225f));
  q = Fma(q, f, Set(0.333333313f));
  const F32x16 square = f * f;
  F32x16 y = Fma(square * f, q, n * Set(kLn2Low));
  y = Fma(square, Set(-0.5f), y);
  return Fma(n, Set(kLn2High), f + y);
}

// log(1 + x). REQUIRES: -1 < x <= 0.
BATON_INLINE F32x16 Log1p(F32x16 x) {
  const F32x16 u = Set(1.0f) + x;
  const F32x16 lost = x - (u - Set(1.0f));
  return Log(u) + lost / u;
}

// The standard Gumbel variate of a random word.
BATON_INLINE F32x16 Gumbel(I32x16 word) {
  const F32x16 v =
      Min(UnsignedPlusHalf(word) * Set(0x1p-32f), Set(0x1.fffffep-1f));
  const F32x16 zero = Set(0.0f);
  return zero - Log(zero - Log1p(zero - v));
}

BATON_INLINE F32x16 OnePlusExpOfMinus(F32x16 x) {
  return Set(1.0f) + Exp(Set(0.0f) - x);
}

// Signed integers in the order of the floats, both zeros alike.
BATON_INLINE I32x16 OrderedBits(F32x16 x) {
  const I32x16 bits = Bits(x + Set(0.0f));
  return bits ^ ShiftRightLogical<1>(ShiftRightArithmetic<31>(bits));
}

BATON_INLINE F32x16 FromOrderedBits(I32x16 key) {
  return FromBits(key ^ ShiftRightLogical<1>(ShiftRightArithmetic<31>(key)));
}

// ceil(n / 16) vectors hold n elements; this many are in the one from `begin`.
BATON_INLINE int LanesFrom(int begin, int n) {
  return n - begin < 16 ? n - begin : 16;
}

}  // namespace baton::BATON_ISA_NAMESPACE

#endif  // BATON_KERNELS_CPU_VECTOR_MATH_H_
