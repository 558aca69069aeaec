// Sixteen lanes in two AVX2 registers, with FMA.
#ifndef BATON_KERNELS_CPU_VECTOR_AVX2_H_
#define BATON_KERNELS_CPU_VECTOR_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace baton::avx2 {

struct F32x16 {
  __m256 a;  // Lanes 0 to 7.
  __m256 b;  // Lanes 8 to 15.
};
struct I32x16 {
  __m256i a;
  __m256i b;
};
struct M16 {  // All bits of a lane are 1, or 0.
  __m256 a;
  __m256 b;
};

BATON_INLINE uint32_t BitsOf(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
BATON_INLINE float FloatOf(uint32_t x) { return __builtin_bit_cast(float, x); }

BATON_INLINE F32x16 Set(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
BATON_INLINE I32x16 Set(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
BATON_INLINE I32x16 LaneIndex() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
          _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

// The first n lanes, n in [0, 16].
BATON_INLINE M16 FirstLanes(int n) {
  const I32x16 index = LaneIndex();
  const __m256i limit = _mm256_set1_epi32(n);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, index.a)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, index.b))};
}

BATON_INLINE F32x16 Load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
BATON_INLINE F32x16 LoadPartial(const float* p, int n) {
  const M16 m = FirstLanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))};
}
BATON_INLINE void Store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
BATON_INLINE void StorePartial(float* p, F32x16 x, int n) {
  const M16 m = FirstLanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
BATON_INLINE I32x16 Load(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
BATON_INLINE void Store(int32_t* p, I32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
BATON_INLINE __m256 WidenBf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
BATON_INLINE F32x16 LoadBf16(const uint16_t* p) {
  return {WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
BATON_INLINE F32x16 LoadBf16Partial(const uint16_t* p, int n) {
  uint16_t copy[16] = {};
  for (int i = 0; i < n; ++i) copy[i] = p[i];
  return LoadBf16(copy);
}
BATON_INLINE F32x16 LowBf16(I32x16 x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}
BATON_INLINE F32x16 HighBf16(I32x16 x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(x.a, high)),
          _mm256_castsi256_ps(_mm256_and_si256(x.b, high))};
}

BATON_INLINE F32x16 WidenLowBf16(I32x16 x) {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, x.a)),
          _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, x.b))};
}
BATON_INLINE F32x16 WidenHighBf16(I32x16 x) {
  const __m256i zero = _mm256_setzero_si256();
  return {_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, x.a)),
          _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, x.b))};
}

BATON_INLINE F32x16 operator+(F32x16 x, F32x16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
BATON_INLINE F32x16 operator-(F32x16 x, F32x16 y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
BATON_INLINE F32x16 operator*(F32x16 x, F32x16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
BATON_INLINE F32x16 operator/(F32x16 x, F32x16 y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
BATON_INLINE F32x16 Fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
BATON_INLINE F32x16 Min(F32x16 x, F32x16 y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
BATON_INLINE F32x16 Max(F32x16 x, F32x16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
BATON_INLINE float Fma(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}

BATON_INLINE M16 operator<(F32x16 x, F32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ),
          _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
BATON_INLINE M16 operator<=(F32x16 x, F32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ),
          _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
BATON_INLINE M16 operator==(F32x16 x, F32x16 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ),
          _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)};
}
BATON_INLINE M16 operator==(I32x16 x, I32x16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}
BATON_INLINE F32x16 Select(M16 m, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
BATON_INLINE I32x16 Select(M16 m, I32x16 x, I32x16 y) {
  return {_mm256_blendv_epi8(y.a, x.a, _mm256_castps_si256(m.a)),
          _mm256_blendv_epi8(y.b, x.b, _mm256_castps_si256(m.b))};
}
BATON_INLINE uint32_t MaskBits(M16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.a)) |
         static_cast<uint32_t>(_mm256_movemask_ps(m.b)) << 8;
}

}  // namespace baton::avx2

#endif  // BATON_KERNELS_CPU_VECTOR_AVX2_H_
