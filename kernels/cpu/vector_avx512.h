// Sixteen lanes in one AVX-512 register (F, BW, VL, DQ).
#ifndef BATON_KERNELS_CPU_VECTOR_AVX512_H_
#define BATON_KERNELS_CPU_VECTOR_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace baton::avx512 {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
using M16 = __mmask16;  // Bit i: lane i.

BATON_INLINE uint32_t BitsOf(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
BATON_INLINE float FloatOf(uint32_t x) { return __builtin_bit_cast(float, x); }

BATON_INLINE F32x16 Set(float x) { return {_mm512_set1_ps(x)}; }
BATON_INLINE I32x16 Set(int32_t x) { return {_mm512_set1_epi32(x)}; }
BATON_INLINE I32x16 LaneIndex() {
  return {
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

// The first n lanes, n in [0, 16].
BATON_INLINE M16 FirstLanes(int n) {
  return static_cast<M16>((uint32_t{1} << n) - 1);
}

BATON_INLINE F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
BATON_INLINE F32x16 LoadPartial(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n), p)};
}
BATON_INLINE void Store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
BATON_INLINE void StorePartial(float* p, F32x16 x, int n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), x.v);
}
BATON_INLINE I32x16 Load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
BATON_INLINE void Store(int32_t* p, I32x16 x) { _mm512_storeu_si512(p, x.v); }
BATON_INLINE F32x16 WidenBf16(__m256i x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
BATON_INLINE F32x16 LoadBf16(const uint16_t* p) {
  return WidenBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
BATON_INLINE F32x16 LoadBf16Partial(const uint16_t* p, int n) {
  return WidenBf16(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
BATON_INLINE F32x16 LowBf16(I32x16 x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16))};
}
BATON_INLINE F32x16 HighBf16(I32x16 x) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

BATON_INLINE F32x16 WidenLowBf16(I32x16 x) {
  return {
      _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_setzero_si512(), x.v))};
}
BATON_INLINE F32x16 WidenHighBf16(I32x16 x) {
  return {
      _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_setzero_si512(), x.v))};
}

BATON_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
BATON_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
BATON_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
BATON_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
BATON_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
BATON_INLINE float Fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

BATON_INLINE M16 operator<(F32x16 a, F32x16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
}
BATON_INLINE M16 operator<=(F32x16 a, F32x16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ);
}
BATON_INLINE M16 operator==(F32x16 a, F32x16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}
BATON_INLINE M16 operator==(I32x16 a, I32x16 b) {
  return _mm512_cmpeq_epi32_mask(a.v, b.v);
}
BATON_INLINE F32x16 Select(M16 m, F32x16 a, F32x16 b) {
  return {_mm512_mask_mov_ps(b.v, m, a.v)};
}
BATON_INLINE I32x16 Select(M16 m, I32x16 a, I32x16 b) {
  return {_mm512_mask_mov_epi32(b.v, m, a.v)};
}
BATON_INLINE uint32_t MaskBits(M16 m) { return m; }

}  // namespace baton::avx512

#endif  // BATON_KERNELS_CPU_VECTOR_AVX512_H_
