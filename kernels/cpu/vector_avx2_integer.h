// Integers, conversion, movement and reduction of vector_avx2.h.
#ifndef BATON_KERNELS_CPU_VECTOR_AVX2_INTEGER_H_
#define BATON_KERNELS_CPU_VECTOR_AVX2_INTEGER_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vector_avx2.h"

namespace baton::avx2 {

BATON_INLINE I32x16 operator+(I32x16 x, I32x16 y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
BATON_INLINE I32x16 operator-(I32x16 x, I32x16 y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
BATON_INLINE I32x16 operator&(I32x16 x, I32x16 y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
BATON_INLINE I32x16 operator|(I32x16 x, I32x16 y) {
  return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
BATON_INLINE I32x16 operator^(I32x16 x, I32x16 y) {
  return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
BATON_INLINE I32x16 Max(I32x16 x, I32x16 y) {
  return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft(I32x16 x) {
  return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightLogical(I32x16 x) {
  return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightArithmetic(I32x16 x) {
  return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
}
struct WideProduct {
  I32x16 high;
  I32x16 low;
};
BATON_INLINE void MultiplyWide8(__m256i x, __m256i y, __m256i* high,
                                __m256i* low) {
  const __m256i even = _mm256_mul_epu32(x, y);
  const __m256i odd =
      _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
BATON_INLINE WideProduct MultiplyWide(I32x16 x, I32x16 y) {
  WideProduct z;
  MultiplyWide8(x.a, y.a, &z.high.a, &z.low.a);
  MultiplyWide8(x.b, y.b, &z.high.b, &z.low.b);
  return z;
}

BATON_INLINE I32x16 Bits(F32x16 x) {
  return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
BATON_INLINE F32x16 FromBits(I32x16 x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
BATON_INLINE F32x16 ToFloat(I32x16 x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
BATON_INLINE I32x16 Truncate(F32x16 x) {
  return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)};
}
BATON_INLINE __m128 UnsignedPlusHalf4(__m128i x) {
  // The CPU converts signed numbers: move the range by 2^31, exactly.
  const __m256d y = _mm256_cvtepi32_pd(
      _mm_xor_si128(x, _mm_set1_epi32(static_cast<int>(0x80000000u))));
  return _mm256_cvtpd_ps(_mm256_add_pd(y, _mm256_set1_pd(2147483648.5)));
}
BATON_INLINE __m256 UnsignedPlusHalf8(__m256i x) {
  return _mm256_set_m128(UnsignedPlusHalf4(_mm256_extracti128_si256(x, 1)),
                         UnsignedPlusHalf4(_mm256_castsi256_si128(x)));
}
BATON_INLINE F32x16 UnsignedPlusHalf(I32x16 x) {
  return {UnsignedPlusHalf8(x.a), UnsignedPlusHalf8(x.b)};
}

BATON_INLINE F32x16 SwapPairs(F32x16 x) {
  return {_mm256_permute_ps(x.a, 0b10110001),
          _mm256_permute_ps(x.b, 0b10110001)};
}
BATON_INLINE F32x16 DuplicateLow(F32x16 x) {
  return {
      _mm256_permutevar8x32_ps(x.a, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
      _mm256_permutevar8x32_ps(x.a, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
BATON_INLINE void TransposeQuads8(__m256& x0, __m256& x1, __m256& x2,
                                  __m256& x3) {
  const __m256 a = _mm256_unpacklo_ps(x0, x1);
  const __m256 b = _mm256_unpackhi_ps(x0, x1);
  const __m256 c = _mm256_unpacklo_ps(x2, x3);
  const __m256 d = _mm256_unpackhi_ps(x2, x3);
  x0 = _mm256_shuffle_ps(a, c, 0x44);
  x1 = _mm256_shuffle_ps(a, c, 0xee);
  x2 = _mm256_shuffle_ps(b, d, 0x44);
  x3 = _mm256_shuffle_ps(b, d, 0xee);
}
BATON_INLINE void TransposeQuads(F32x16 (&x)[4]) {
  TransposeQuads8(x[0].a, x[1].a, x[2].a, x[3].a);
  TransposeQuads8(x[0].b, x[1].b, x[2].b, x[3].b);
}
BATON_INLINE F32x16 BroadcastQuad(const float* p) {
  const __m256 x = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  return {x, x};
}
BATON_INLINE __m128i LoadQuad(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
BATON_INLINE I32x16 LoadQuads(const void* a, const void* b, const void* c,
                              const void* d) {
  return {_mm256_set_m128i(LoadQuad(b), LoadQuad(a)),
          _mm256_set_m128i(LoadQuad(d), LoadQuad(c))};
}
BATON_INLINE int StoreSelected(int32_t* p, M16 m, I32x16 x) {
  int32_t lanes[16];
  Store(lanes, x);
  int n = 0;
  for (uint32_t bits = MaskBits(m); bits != 0; bits &= bits - 1) {
    p[n++] = lanes[__builtin_ctz(bits)];
  }
  return n;
}

BATON_INLINE float FirstLane(F32x16 x) { return _mm256_cvtss_f32(x.a); }
BATON_INLINE float Sum(F32x16 x) {
  const __m256 y = _mm256_add_ps(x.a, x.b);
  __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
BATON_INLINE float MaxLane(F32x16 x) {
  const __m256 y = _mm256_max_ps(x.a, x.b);
  __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_max_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
BATON_INLINE int32_t MaxLane(I32x16 x) {
  const __m256i y = _mm256_max_epi32(x.a, x.b);
  __m128i z =
      _mm_max_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  z = _mm_max_epi32(z, _mm_shuffle_epi32(z, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(z, _mm_shuffle_epi32(z, 0xb1)));
}
BATON_INLINE __m256i PairSums(__m256i x) {
  return _mm256_add_epi64(_mm256_and_si256(x, _mm256_set1_epi64x(0xffffffff)),
                          _mm256_srli_epi64(x, 32));
}
BATON_INLINE uint64_t SumUnsigned(I32x16 x) {
  const __m256i y = _mm256_add_epi64(PairSums(x.a), PairSums(x.b));
  const __m128i z =
      _mm_add_epi64(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(z)) +
         static_cast<uint64_t>(_mm_extract_epi64(z, 1));
}

// The linear kernel's register blocks: up to so many rows, and with r rows so
// many panels of 16 outputs.
inline constexpr int kMaxTileRows = 6;
inline constexpr int kMaxTilePanels[kMaxTileRows + 1] = {0, 4, 2, 2, 1, 1, 1};

// The attention kernel's: scores of so many pairs (row, head) at once, and sums
// of so many heads by vectors of the latent.
inline constexpr int kScorePairs = 1;
inline constexpr int kSumHeads = 3;
inline constexpr int kSumVectors = 2;

}  // namespace baton::avx2

#endif  // BATON_KERNELS_CPU_VECTOR_AVX2_INTEGER_H_
