// Sixteen lanes as an array: what the other widths must equal, on any CPU.
#ifndef BATON_KERNELS_CPU_VECTOR_ARRAY_H_
#define BATON_KERNELS_CPU_VECTOR_ARRAY_H_

#include <cstdint>

namespace baton::array {

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};
using M16 = uint32_t;  // Bit i: lane i.

#define BATON_EACH_LANE for (int i = 0; i < 16; ++i)

BATON_INLINE uint32_t BitsOf(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
BATON_INLINE float FloatOf(uint32_t x) { return __builtin_bit_cast(float, x); }

BATON_INLINE F32x16 Set(float x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = x;
  return y;
}
BATON_INLINE I32x16 Set(int32_t x) {
  I32x16 y;
  BATON_EACH_LANE y.lane[i] = x;
  return y;
}
BATON_INLINE I32x16 LaneIndex() {
  I32x16 y;
  BATON_EACH_LANE y.lane[i] = i;
  return y;
}

// The first n lanes, n in [0, 16].
BATON_INLINE M16 FirstLanes(int n) { return (M16{1} << n) - 1; }

// Memory. The partial forms touch the first n elements only, n in [0, 16]; a
// load's other lanes are 0.
BATON_INLINE F32x16 Load(const float* p) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = p[i];
  return y;
}
BATON_INLINE F32x16 LoadPartial(const float* p, int n) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = i < n ? p[i] : 0.0f;
  return y;
}
BATON_INLINE void Store(float* p, F32x16 x) {
  BATON_EACH_LANE p[i] = x.lane[i];
}
BATON_INLINE void StorePartial(float* p, F32x16 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x.lane[i];
}
BATON_INLINE I32x16 Load(const int32_t* p) {
  I32x16 y;
  BATON_EACH_LANE y.lane[i] = p[i];
  return y;
}
BATON_INLINE void Store(int32_t* p, I32x16 x) {
  BATON_EACH_LANE p[i] = x.lane[i];
}
// Bf16 bits, widened.
BATON_INLINE F32x16 LoadBf16(const uint16_t* p) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = FloatOf(uint32_t{p[i]} << 16);
  return y;
}
BATON_INLINE F32x16 LoadBf16Partial(const uint16_t* p, int n) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = i < n ? FloatOf(uint32_t{p[i]} << 16) : 0.0f;
  return y;
}
// Lane i holds two bf16: the low half and the high half, widened.
BATON_INLINE F32x16 LowBf16(I32x16 x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] = FloatOf(static_cast<uint32_t>(x.lane[i]) << 16);
  return y;
}
BATON_INLINE F32x16 HighBf16(I32x16 x) {
  F32x16 y;
  BATON_EACH_LANE y.lane[i] =
      FloatOf(static_cast<uint32_t>(x.lane[i]) & 0xffff0000u);
  return y;
}

// Each four lanes hold eight bf16: the first four and the last, widened.
BATON_INLINE F32x16 WidenLowBf16(I32x16 x) {
  uint16_t halves[32];
  __builtin_memcpy(halves, x.lane, 64);
  F32x16 y;
  BATON_EACH_LANE {
    y.lane[i] = FloatOf(uint32_t{halves[i / 4 * 8 + i % 4]} << 16);
  }
  return y;
}
BATON_INLINE F32x16 WidenHighBf16(I32x16 x) {
  uint16_t halves[32];
  __builtin_memcpy(halves, x.lane, 64);
  F32x16 y;
  BATON_EACH_LANE {
    y.lane[i] = FloatOf(uint32_t{halves[i / 4 * 8 + 4 + i % 4]} << 16);
  }
  return y;
}

// Arithmetic, IEEE. Min and Max give the second operand unless the first is
// less, or greater: so a NaN in the second comes through.
BATON_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] + b.lane[i];
  return a;
}
BATON_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] - b.lane[i];
  return a;
}
BATON_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] * b.lane[i];
  return a;
}
BATON_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] / b.lane[i];
  return a;
}
// a * b + c, rounded once.
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  BATON_EACH_LANE a.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return a;
}
BATON_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
BATON_INLINE float Fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

// Comparison and choice.
BATON_INLINE M16 operator<(F32x16 a, F32x16 b) {
  M16 m = 0;
  BATON_EACH_LANE m |= static_cast<M16>(a.lane[i] < b.lane[i]) << i;
  return m;
}
BATON_INLINE M16 operator<=(F32x16 a, F32x16 b) {
  M16 m = 0;
  BATON_EACH_LANE m |= static_cast<M16>(a.lane[i] <= b.lane[i]) << i;
  return m;
}
BATON_INLINE M16 operator==(F32x16 a, F32x16 b) {
  M16 m = 0;
  BATON_EACH_LANE m |= static_cast<M16>(a.lane[i] == b.lane[i]) << i;
  return m;
}
BATON_INLINE M16 operator==(I32x16 a, I32x16 b) {
  M16 m = 0;
  BATON_EACH_LANE m |= static_cast<M16>(a.lane[i] == b.lane[i]) << i;
  return m;
}
BATON_INLINE F32x16 Select(M16 m, F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.lane[i] = (m >> i & 1) != 0 ? a.lane[i] : b.lane[i];
  return a;
}
BATON_INLINE I32x16 Select(M16 m, I32x16 a, I32x16 b) {
  BATON_EACH_LANE a.lane[i] = (m >> i & 1) != 0 ? a.lane[i] : b.lane[i];
  return a;
}
BATON_INLINE uint32_t MaskBits(M16 m) { return m; }

}  // namespace baton::array

#endif  // BATON_KERNELS_CPU_VECTOR_ARRAY_H_
