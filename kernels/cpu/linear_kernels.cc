// y = x W^T over packed panels: a tile of accumulators in registers, rows by
// panels, walks down k. Which tile a row falls in never changes its bits: each
// output has one accumulator, and k ascends.
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

template <int kRows, int kPanels>
void Tile(const LinearBlock& b, const TileStart& t) {
  F32x16 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) sum[r][p] = Set(0.0f);
  }
  if (b.is_bf16) {
    WalkBf16<kRows, kPanels>(b, t, sum);
  } else {
    WalkF32<kRows, kPanels>(b, t, sum);
  }
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

using TileFunction = void (*)(const LinearBlock&, const TileStart&);

// The tile of `panels` panels, among 1 .. kPanels, for kRows rows.
template <int kRows, int kPanels>
BATON_INLINE TileFunction PickPanels(int panels) {
  if constexpr (kPanels > 1) {
    if (panels < kPanels) return PickPanels<kRows, kPanels - 1>(panels);
  }
  return Tile<kRows, kPanels>;
}

template <int kRows>
BATON_INLINE TileFunction PickTile(int rows, int panels) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return PickTile<kRows - 1>(rows, panels);
  }
  return PickPanels<kRows, kMaxTilePanels[kRows]>(panels);
}

}  // namespace

void LinearKernel(const LinearBlock& b) {
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
        PickTile<kMaxTileRows>(rows, next_panel - panel)(
            b, {row, panel, k, k_end, ahead});
      }
    }
  }
}

}  // namespace baton::BATON_ISA_NAMESPACE
