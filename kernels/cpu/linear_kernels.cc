// y = x W^T over packed panels: a tile of accumulators in registers, rows by
// panels, walks down k. Which tile a row falls in never changes its bits: each
// output has one accumulator, and k ascends.
#include <xmmintrin.h>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace baton::BATON_ISA_NAMESPACE {
namespace {

// Sums start anew every so many k and are then added in order. Even, since bf16
// weights come in pairs of k.
constexpr int kReductionBlock = 512;
constexpr int kLanes = 16;

// Where a tile starts, and its range of k.
struct TileStart {
  int row;
  int panel;
  int k_begin;
  int k_end;
  const char* ahead;  // Weights to fetch meanwhile, as many as it reads.
};

template <int kPanels>
BATON_INLINE void FetchAhead(const char* ahead, ptrdiff_t panel_bytes) {
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    __builtin_prefetch(ahead + p * panel_bytes, 0, 2);
  }
}

template <int kRows, int kPanels>
BATON_INLINE void MultiplyAdd(const float* x, ptrdiff_t x_stride,
                              const F32x16 (&w)[kPanels],
                              F32x16 (&sum)[kRows][kPanels]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const F32x16 value = Set(x[r * x_stride]);
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) sum[r][p] = Fma(value, w[p], sum[r][p]);
  }
}

template <int kRows, int kPanels>
BATON_INLINE void WalkF32(const LinearBlock& b, const TileStart& t,
                          F32x16 (&sum)[kRows][kPanels]) {
  const ptrdiff_t panel_size = ptrdiff_t{b.in} * kLanes;
  const float* w = static_cast<const float*>(b.panels) + t.panel * panel_size;
  const float* x = b.x + t.row * b.x_stride;
  for (int k = t.k_begin; k < t.k_end; ++k) {
    FetchAhead<kPanels>(t.ahead + ptrdiff_t{k} * 64, panel_size * 4);
    F32x16 weight[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      weight[p] = Load(w + p * panel_size + ptrdiff_t{k} * kLanes);
    }
    MultiplyAdd<kRows, kPanels>(x + k, b.x_stride, weight, sum);
  }
}

template <int kRows, int kPanels>
BATON_INLINE void WalkBf16(const LinearBlock& b, const TileStart& t,
                           F32x16 (&sum)[kRows][kPanels]) {
  const ptrdiff_t panel_size = ptrdiff_t{(b.in + 1) / 2} * kLanes;
  const int32_t* w =
      static_cast<const int32_t*>(b.panels) + t.panel * panel_size;
  const float* x = b.x + t.row * b.x_stride;
  F32x16 weight[kPanels];
  I32x16 pair[kPanels];
  for (int k = t.k_begin; k < t.k_end; k += 2) {
    FetchAhead<kPanels>(t.ahead + ptrdiff_t{k} * 32, panel_size * 4);
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      pair[p] = Load(w + p * panel_size + ptrdiff_t{k / 2} * kLanes);
      weight[p] = LowBf16(pair[p]);
    }
    MultiplyAdd<kRows, kPanels>(x + k, b.x_stride, weight, sum);
    if (k + 1 == t.k_end) return;
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) weight[p] = HighBf16(pair[p]);
    MultiplyAdd<kRows, kPanels>(x + k + 1, b.x_stride, weight, sum);
  }
}

// As VDPBF16PS: first the odd k of a pair, then the even one, by FMA. x has
// been rounded, and denormals are flushed.
template <int kRows, int kPanels>
BATON_INLINE void WalkDots(const LinearBlock& b, const TileStart& t,
                           F32x16 (&sum)[kRows][kPanels]) {
  const ptrdiff_t panel_size = ptrdiff_t{(b.in + 1) / 2} * kLanes;
  const int32_t* w =
      static_cast<const int32_t*>(b.panels) + t.panel * panel_size;
  const ptrdiff_t x_stride = b.in + b.in % 2;
  const float* x = b.rounded + t.row * x_stride;
  F32x16 weight[kPanels];
  I32x16 pair[kPanels];
  for (int k = t.k_begin; k < t.k_end; k += 2) {
    FetchAhead<kPanels>(t.ahead + ptrdiff_t{k} * 32, panel_size * 4);
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      pair[p] = Load(w + p * panel_size + ptrdiff_t{k / 2} * kLanes);
      weight[p] = HighBf16(pair[p]);
    }
    MultiplyAdd<kRows, kPanels>(x + k + 1, x_stride, weight, sum);
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) weight[p] = LowBf16(pair[p]);
    MultiplyAdd<kRows, kPanels>(x + k, x_stride, weight, sum);
  }
}

// y, or what it holds from the blocks of k before, plus the sums.
template <int kRows, int kPanels>
BATON_INLINE void StoreTile(const LinearBlock& b, const TileStart& t,
                            F32x16 (&sum)[kRows][kPanels]) {
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    const int first = (t.panel + p) * kLanes;
    const int lanes = LanesFrom(first, b.out);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float* y = b.y + (t.row + r) * b.y_stride + first;
      if (t.k_begin > 0) sum[r][p] = LoadPartial(y, lanes) + sum[r][p];
      StorePartial(y, sum[r][p], lanes);
    }
  }
}

template <int kRows, int kPanels>
BATON_INLINE void Clear(F32x16 (&sum)[kRows][kPanels]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) sum[r][p] = Set(0.0f);
  }
}

template <LinearArithmetic kArithmetic, int kRows, int kPanels>
void Tile(const LinearBlock& b, const TileStart& t) {
  F32x16 sum[kRows][kPanels];
  Clear<kRows, kPanels>(sum);
  if constexpr (kArithmetic == LinearArithmetic::kBf16Dots) {
    WalkDots<kRows, kPanels>(b, t, sum);
  } else if (b.is_bf16) {
    WalkBf16<kRows, kPanels>(b, t, sum);
  } else {
    WalkF32<kRows, kPanels>(b, t, sum);
  }
  StoreTile<kRows, kPanels>(b, t, sum);
}

#if defined(BATON_VECTOR_AVX512)
// The one place with more than the width's own instructions: nothing calls it
// where the CPU lacks them.
template <int kRows, int kPanels>
[[gnu::target("avx512bf16")]] void NativeTile(const LinearBlock& b,
                                              const TileStart& t) {
  const ptrdiff_t panel_size = ptrdiff_t{(b.in + 1) / 2} * kLanes;
  const int32_t* w =
      static_cast<const int32_t*>(b.panels) + t.panel * panel_size;
  const ptrdiff_t x_stride = (b.in + 1) / 2;
  const int32_t* x =
      reinterpret_cast<const int32_t*>(b.rounded) + t.row * x_stride;
  F32x16 sum[kRows][kPanels];
  Clear<kRows, kPanels>(sum);
  for (int k = t.k_begin; k < t.k_end; k += 2) {
    FetchAhead<kPanels>(t.ahead + ptrdiff_t{k} * 32, panel_size * 4);
    __m512i weight[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      weight[p] = Load(w + p * panel_size + ptrdiff_t{k / 2} * kLanes).v;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i pair = _mm512_set1_epi32(x[r * x_stride + k / 2]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        sum[r][p].v =
            _mm512_dpbf16_ps(sum[r][p].v, reinterpret_cast<__m512bh>(pair),
                             reinterpret_cast<__m512bh>(weight[p]));
      }
    }
  }
  StoreTile<kRows, kPanels>(b, t, sum);
}
#endif
using TileFunction = void (*)(const LinearBlock&, const TileStart&);

// The tile of `panels` panels, among 1 .. kPanels, for kRows rows.
template <LinearArithmetic kArithmetic, int kRows, int kPanels>
BATON_INLINE TileFunction PickPanels(int panels) {
  if constexpr (kPanels > 1) {
    if (panels < kPanels) {
      return PickPanels<kArithmetic, kRows, kPanels - 1>(panels);
    }
  }
#if defined(BATON_VECTOR_AVX512)
  if constexpr (kArithmetic == LinearArithmetic::kNativeBf16Dots) {
    return NativeTile<kRows, kPanels>;
  }
#endif
  return Tile<kArithmetic, kRows, kPanels>;
}

template <LinearArithmetic kArithmetic, int kRows>
BATON_INLINE TileFunction PickTile(int rows, int panels) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return PickTile<kArithmetic, kRows - 1>(rows, panels);
  }
  return PickPanels<kArithmetic, kRows, kMaxTilePanels[kRows]>(panels);
}

// Bits of bf16 in the upper halves: to nearest, ties to even, denormals too.
BATON_INLINE I32x16 RoundToBf16(F32x16 x) {
  const I32x16 bits = Bits(x);
  const I32x16 odd = ShiftRightLogical<16>(bits) & Set(1);
  const I32x16 rounded = bits + Set(0x7fff) + odd;
  const I32x16 kept = Select(x == x, rounded, bits | Set(0x400000));
  return kept & Set(static_cast<int32_t>(0xffff0000u));
}

// What the dots read: for WalkDots as float32, for NativeTile as bf16.
template <LinearArithmetic kArithmetic>
BATON_INLINE void RoundRows(const LinearBlock& b) {
  const int width = b.in + b.in % 2;
  for (int r = 0; r < b.rows; ++r) {
    const float* x = b.x + r * b.x_stride;
    for (int k = 0; k < width; k += kLanes) {
      const I32x16 bits = RoundToBf16(LoadPartial(x + k, LanesFrom(k, b.in)));
      const int lanes = LanesFrom(k, width);
#if defined(BATON_VECTOR_AVX512)
      if constexpr (kArithmetic == LinearArithmetic::kNativeBf16Dots) {
        uint16_t* to =
            reinterpret_cast<uint16_t*>(b.rounded) + ptrdiff_t{r} * width + k;
        _mm256_mask_storeu_epi16(
            to, FirstLanes(lanes),
            _mm512_cvtepi32_epi16(ShiftRightLogical<16>(bits).v));
        continue;
      }
#endif
      StorePartial(b.rounded + ptrdiff_t{r} * width + k, FromBits(bits), lanes);
    }
  }
}

template <LinearArithmetic kArithmetic>
BATON_INLINE void Multiply(const LinearBlock& b) {
  const int num_panels = (b.out + kLanes - 1) / kLanes;
  const ptrdiff_t panel_bytes =
      64 * ptrdiff_t{b.is_bf16 ? (b.in + 1) / 2 : b.in};
  // Rows and panels are cut into tiles of nearly equal size.
  const int row_tiles = (b.rows + kMaxTileRows - 1) / kMaxTileRows;
  const int most_rows = (b.rows + row_tiles - 1) / row_tiles;
  const int most_panels = kMaxTilePanels[most_rows];
  const int panel_tiles = (num_panels + most_panels - 1) / most_panels;
  for (int i = 0; i < panel_tiles; ++i) {
    const int panel = i * num_panels / panel_tiles;
    const int next_panel = (i + 1) * num_panels / panel_tiles;
    const char* here = static_cast<const char*>(b.panels) + panel * panel_bytes;
    const char* next =
        next_panel < num_panels
            ? static_cast<const char*>(b.panels) + next_panel * panel_bytes
            : static_cast<const char*>(b.next_panels);
    for (int k = 0; k == 0 || k < b.in; k += kReductionBlock) {
      const int k_end = b.in - k < kReductionBlock ? b.in : k + kReductionBlock;
      for (int j = 0; j < row_tiles; ++j) {
        const int row = j * b.rows / row_tiles;
        const int rows = (j + 1) * b.rows / row_tiles - row;
        const char* ahead = j + 1 == row_tiles ? next : here;
        PickTile<kArithmetic, kMaxTileRows>(rows, next_panel - panel)(
            b, {row, panel, k, k_end, ahead});
      }
    }
  }
}

// Meanwhile denormals count as zero, and results that would be one become zero;
// so it is in VDPBF16PS always.
template <LinearArithmetic kArithmetic>
BATON_INLINE void MultiplyRounded(const LinearBlock& b) {
  constexpr unsigned kFlushDenormals = 0x8040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushDenormals);
  RoundRows<kArithmetic>(b);
  Multiply<kArithmetic>(b);
  _mm_setcsr(before);
}

}  // namespace

void LinearKernel(const LinearBlock& b) {
  switch (b.arithmetic) {
    case LinearArithmetic::kFma:
      return Multiply<LinearArithmetic::kFma>(b);
    case LinearArithmetic::kNativeBf16Dots:
#if defined(BATON_VECTOR_AVX512)
      return MultiplyRounded<LinearArithmetic::kNativeBf16Dots>(b);
#endif  // Else by the definition.
    case LinearArithmetic::kBf16Dots:
      return MultiplyRounded<LinearArithmetic::kBf16Dots>(b);
  }
}

}  // namespace baton::BATON_ISA_NAMESPACE
