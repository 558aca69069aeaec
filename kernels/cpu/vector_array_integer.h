// Integers, conversion, movement and reduction of vector_array.h.
#ifndef BATON_KERNELS_CPU_VECTOR_ARRAY_INTEGER_H_
#define BATON_KERNELS_CPU_VECTOR_ARRAY_INTEGER_H_

#include <cstdint>

#include "kernels/cpu/vector_array.h"

namespace baton::array {

// Integers, modulo 2^32.
BATON_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] = static_cast<int32_t>(
      static_cast<uint32_t>(a.lane[i]) + static_cast<uint32_t>(b.lane[i]));
  return a;
}
BATON_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] = static_cast<int32_t>(
      static_cast<uint32_t>(a.lane[i]) - static_cast<uint32_t>(b.lane[i]));
  return a;
}
BATON_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] &= b.lane[i];
  return a;
}
BATON_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] |= b.lane[i];
  return a;
}
BATON_INLINE I32x16 operator^(I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] ^= b.lane[i];
  return a;
}
BATON_INLINE I32x16 Max(I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft(I32x16 a) {
  BATON_EACH_LANE a.lane[i] =
      static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) << kBits);
  return a;
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightLogical(I32x16 a) {
  BATON_EACH_LANE a.lane[i] =
      static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) >> kBits);
  return a;
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightArithmetic(I32x16 a) {
  BATON_EACH_LANE a.lane[i] >>= kBits;
  return a;
}
// The 64-bit products of unsigned lanes, in halves.
struct WideProduct {
  I32x16 high;
  I32x16 low;
};
BATON_INLINE WideProduct MultiplyWide(I32x16 a, I32x16 b) {
  WideProduct y;
  BATON_EACH_LANE {
    const uint64_t product = uint64_t{static_cast<uint32_t>(a.lane[i])} *
                             static_cast<uint32_t>(b.lane[i]);
    y.high.lane[i] = static_cast<int32_t>(product >> 32);
    y.low.lane[i] = static_cast<int32_t>(product);
  }
  return y;
}

// Conversion.
BATON_INLINE I32x16 Bits(F32x16 x) { return __builtin_bit_cast(I32x16, x); }
BATON_INLINE F32x16 FromBits(I32x16 x) { return __builtin_bit_cast(F32x16, x); }
BATON_INLINE F32x16 ToFloat(I32x16 x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = static_cast<float>(x.lane[i]);
  return y;
}
// Towards zero. REQUIRES: |x| < 2^31.
BATON_INLINE I32x16 Truncate(F32x16 x) {
  I32x16 y;
  BATON_EACH_LANE y.lane[i] = static_cast<int32_t>(x.lane[i]);
  return y;
}
// float32(x + 0.5), x unsigned, rounded once.
BATON_INLINE F32x16 UnsignedPlusHalf(I32x16 x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] =
      static_cast<float>(static_cast<uint32_t>(x.lane[i]) + 0.5);
  return y;
}

// Movement.
// (x0, x1, x2, x3, ..) to (x1, x0, x3, x2, ..).
BATON_INLINE F32x16 SwapPairs(F32x16 x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = x.lane[i ^ 1];
  return y;
}
// (x0, x1, ..) of the first eight lanes to (x0, x0, x1, x1, ..).
BATON_INLINE F32x16 DuplicateLow(F32x16 x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = x.lane[i / 2];
  return y;
}
// In each four lanes 4 g ..: x[j].lane[4 g + k] becomes x[k].lane[4 g + j].
BATON_INLINE void TransposeQuads(F32x16 (&x)[4]) {
  const F32x16 from[4] = {x[0], x[1], x[2], x[3]};
  for (int k = 0; k < 4; ++k) {
    BATON_EACH_LANE x[k].lane[i] = from[i % 4].lane[i / 4 * 4 + k];
  }
}
// Four floats, four times.
BATON_INLINE F32x16 BroadcastQuad(const float* p) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = p[i % 4];
  return y;
}
// Four words from each of four places.
BATON_INLINE I32x16 LoadQuads(const void* a, const void* b, const void* c,
                              const void* d) {
  I32x16 y;
  __builtin_memcpy(y.lane, a, 16);
  __builtin_memcpy(y.lane + 4, b, 16);
  __builtin_memcpy(y.lane + 8, c, 16);
  __builtin_memcpy(y.lane + 12, d, 16);
  return y;
}
// Stores the lanes of m, in order, without gaps; may write 16 lanes. Returns
// how many.
BATON_INLINE int StoreSelected(int32_t* p, M16 m, I32x16 x) {
  int n = 0;
  BATON_EACH_LANE {
    p[n] = x.lane[i];
    n += static_cast<int>(m >> i & 1);
  }
  return n;
}

BATON_INLINE float FirstLane(F32x16 x) { return x.lane[0]; }
// Reductions: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
BATON_INLINE float Sum(F32x16 x) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) x.lane[i] = x.lane[i] + x.lane[i + width];
  }
  return x.lane[0];
}
BATON_INLINE float MaxLane(F32x16 x) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      x.lane[i] = x.lane[i] > x.lane[i + width] ? x.lane[i] : x.lane[i + width];
    }
  }
  return x.lane[0];
}
BATON_INLINE int32_t MaxLane(I32x16 x) {
  int32_t y = x.lane[0];
  BATON_EACH_LANE y = x.lane[i] > y ? x.lane[i] : y;
  return y;
}
// The sum of lanes as unsigned 32-bit numbers.
BATON_INLINE uint64_t SumUnsigned(I32x16 x) {
  uint64_t y = 0;
  BATON_EACH_LANE y += static_cast<uint32_t>(x.lane[i]);
  return y;
}

#undef BATON_EACH_LANE

// The linear kernel's register blocks: up to so many rows, and with r rows so
// many panels of 16 outputs.
inline constexpr int kMaxTileRows = 2;
inline constexpr int kMaxTilePanels[kMaxTileRows + 1] = {0, 2, 1};

// The attention kernel's: scores of so many pairs (row, head) at once, and sums
// of so many heads by vectors of the latent.
inline constexpr int kScorePairs = 1;
inline constexpr int kSumHeads = 2;
inline constexpr int kSumVectors = 1;

}  // namespace baton::array

#endif  // BATON_KERNELS_CPU_VECTOR_ARRAY_INTEGER_H_
