// Integers, conversion, movement and reduction of vector_avx512.h.
#ifndef BATON_KERNELS_CPU_VECTOR_AVX512_INTEGER_H_
#define BATON_KERNELS_CPU_VECTOR_AVX512_INTEGER_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vector_avx512.h"

namespace baton::avx512 {

BATON_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
BATON_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  return {_mm512_sub_epi32(a.v, b.v)};
}
BATON_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  return {_mm512_and_si512(a.v, b.v)};
}
BATON_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  return {_mm512_or_si512(a.v, b.v)};
}
BATON_INLINE I32x16 operator^(I32x16 a, I32x16 b) {
  return {_mm512_xor_si512(a.v, b.v)};
}
BATON_INLINE I32x16 Max(I32x16 a, I32x16 b) {
  return {_mm512_max_epi32(a.v, b.v)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftLeft(I32x16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightLogical(I32x16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
template <int kBits>
BATON_INLINE I32x16 ShiftRightArithmetic(I32x16 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
struct WideProduct {
  I32x16 high;
  I32x16 low;
};
BATON_INLINE WideProduct MultiplyWide(I32x16 a, I32x16 b) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd =
      _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  return {{_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)},
          {_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32))}};
}

BATON_INLINE I32x16 Bits(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
BATON_INLINE F32x16 FromBits(I32x16 x) { return {_mm512_castsi512_ps(x.v)}; }
BATON_INLINE F32x16 ToFloat(I32x16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
BATON_INLINE I32x16 Truncate(F32x16 x) { return {_mm512_cvttps_epi32(x.v)}; }
BATON_INLINE F32x16 UnsignedPlusHalf(I32x16 x) {
  const __m512d half = _mm512_set1_pd(0.5);
  const __m256 low = _mm512_cvtpd_ps(
      _mm512_add_pd(_mm512_cvtepu32_pd(_mm512_castsi512_si256(x.v)), half));
  const __m256 high = _mm512_cvtpd_ps(_mm512_add_pd(
      _mm512_cvtepu32_pd(_mm512_extracti64x4_epi64(x.v, 1)), half));
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)};
}

BATON_INLINE F32x16 SwapPairs(F32x16 x) {
  return {_mm512_permute_ps(x.v, 0b10110001)};
}
BATON_INLINE F32x16 DuplicateLow(F32x16 x) {
  return {_mm512_permutexvar_ps(
      _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), x.v)};
}
BATON_INLINE void TransposeQuads(F32x16 (&x)[4]) {
  const __m512 a = _mm512_unpacklo_ps(x[0].v, x[1].v);
  const __m512 b = _mm512_unpackhi_ps(x[0].v, x[1].v);
  const __m512 c = _mm512_unpacklo_ps(x[2].v, x[3].v);
  const __m512 d = _mm512_unpackhi_ps(x[2].v, x[3].v);
  x[0].v = _mm512_shuffle_ps(a, c, 0x44);
  x[1].v = _mm512_shuffle_ps(a, c, 0xee);
  x[2].v = _mm512_shuffle_ps(b, d, 0x44);
  x[3].v = _mm512_shuffle_ps(b, d, 0xee);
}
BATON_INLINE F32x16 BroadcastQuad(const float* p) {
  return {_mm512_broadcast_f32x4(_mm_loadu_ps(p))};
}
BATON_INLINE __m128i LoadQuad(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
BATON_INLINE I32x16 LoadQuads(const void* a, const void* b, const void* c,
                              const void* d) {
  // Broadcasts from memory, merged: they leave the shuffle unit free.
  __m512i x = _mm512_castsi128_si512(LoadQuad(a));
  x = _mm512_mask_broadcast_i32x4(x, 0x00f0, LoadQuad(b));
  x = _mm512_mask_broadcast_i32x4(x, 0x0f00, LoadQuad(c));
  return {_mm512_mask_broadcast_i32x4(x, 0xf000, LoadQuad(d))};
}
BATON_INLINE int StoreSelected(int32_t* p, M16 m, I32x16 x) {
  _mm512_mask_compressstoreu_epi32(p, m, x.v);
  return __builtin_popcount(m);
}

BATON_INLINE float FirstLane(F32x16 x) { return _mm512_cvtss_f32(x.v); }
// The last three steps of a reduction, on the upper and lower half.
BATON_INLINE float Sum(F32x16 x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x.v),
                                 _mm512_extractf32x8_ps(x.v, 1));
  __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_add_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
BATON_INLINE float MaxLane(F32x16 x) {
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x.v),
                                 _mm512_extractf32x8_ps(x.v, 1));
  __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_max_ps(z, _mm_movehl_ps(z, z));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
BATON_INLINE int32_t MaxLane(I32x16 x) { return _mm512_reduce_max_epi32(x.v); }
BATON_INLINE uint64_t SumUnsigned(I32x16 x) {
  const __m512i low = _mm512_and_si512(x.v, _mm512_set1_epi64(0xffffffff));
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(
      _mm512_add_epi64(low, _mm512_srli_epi64(x.v, 32))));
}

// The linear kernel's register blocks: up to so many rows, and with r rows so
// many panels of 16 outputs.
inline constexpr int kMaxTileRows = 8;
inline constexpr int kMaxTilePanels[kMaxTileRows + 1] = {0, 8, 6, 4, 4,
                                                         4, 4, 3, 3};

// The attention kernel's: scores of so many pairs (row, head) at once, and sums
// of so many heads by vectors of the latent.
inline constexpr int kScorePairs = 6;
inline constexpr int kSumHeads = 6;
inline constexpr int kSumVectors = 4;

}  // namespace baton::avx512

#endif  // BATON_KERNELS_CPU_VECTOR_AVX512_INTEGER_H_
