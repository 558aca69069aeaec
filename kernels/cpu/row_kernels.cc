// Elementwise kernels, a row at a time.
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace baton::BATON_ISA_NAMESPACE {

void RmsNormKernel(const float* x, const float* weight, float eps, int cols,
                   float* y) {
  F32x16 squares = Set(0.0f);
  for (int i = 0; i < cols; i += 16) {
    const F32x16 v = LoadPartial(x + i, LanesFrom(i, cols));
    squares = Fma(v, v, squares);
  }
  const float mean = Sum(squares) / static_cast<float>(cols);
  const F32x16 inverse = Set(1.0f / __builtin_sqrtf(mean + eps));
  for (int i = 0; i < cols; i += 16) {
    const int lanes = LanesFrom(i, cols);
    const F32x16 scaled = LoadPartial(x + i, lanes) * inverse;
    StorePartial(y + i, LoadPartial(weight + i, lanes) * scaled, lanes);
  }
}

// y[2i] = fma(x[2i], c, -(x[2i+1] s)); y[2i+1] = fma(x[2i+1], c, x[2i] s).
void ApplyRopeKernel(float* x, const float* cos, const float* sin, int cols) {
  // The sign of sin in the even lanes.
  const I32x16 odd = LaneIndex() & Set(int32_t{1});
  const I32x16 sign = ShiftLeft<31>(odd + Set(int32_t{1}));
  for (int i = 0; i < cols; i += 16) {
    const int lanes = LanesFrom(i, cols);
    const F32x16 v = LoadPartial(x + i, lanes);
    const F32x16 c = DuplicateLow(LoadPartial(cos + i / 2, lanes / 2));
    const F32x16 s = DuplicateLow(LoadPartial(sin + i / 2, lanes / 2));
    const F32x16 turned = SwapPairs(v) * FromBits(Bits(s) ^ sign);
    StorePartial(x + i, Fma(v, c, turned), lanes);
  }
}

void SiluMulKernel(const float* gate, const float* up, int cols, float* y) {
  for (int i = 0; i < cols; i += 16) {
    const int lanes = LanesFrom(i, cols);
    const F32x16 g = LoadPartial(gate + i, lanes);
    const F32x16 silu = g / OnePlusExpOfMinus(g);
    StorePartial(y + i, silu * LoadPartial(up + i, lanes), lanes);
  }
}

void AddInPlaceKernel(float* x, const float* y, int cols) {
  for (int i = 0; i < cols; i += 16) {
    const int lanes = LanesFrom(i, cols);
    StorePartial(x + i, LoadPartial(x + i, lanes) + LoadPartial(y + i, lanes),
                 lanes);
  }
}

void CombineExpertsKernel(const CombineRow& row) {
  for (int i = 0; i < row.cols; i += 16) {
    const int lanes = LanesFrom(i, row.cols);
    F32x16 sum = LoadPartial(row.shared + i, lanes);
    for (int k = 0; k < row.top_k; ++k) {
      const float* routed = row.routed + k * row.routed_stride + i;
      sum = Fma(Set(row.weights[k]), LoadPartial(routed, lanes), sum);
    }
    StorePartial(row.y + i, sum, lanes);
  }
}

}  // namespace baton::BATON_ISA_NAMESPACE
