// Row kernels: embedding, RMSNorm, rotary embedding, SwiGLU, sums.
#ifndef BATON_KERNELS_ELEMENTWISE_H_
#define BATON_KERNELS_ELEMENTWISE_H_

#include <cstdint>
#include <span>

#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

// y[r] = w * x[r] * (mean(x[r]^2) + eps)^-1/2. The sum: lane i mod 16, then a
// fixed tree. `y` may be `x`. weight: [cols] float32.
void RmsNorm(const CpuContext& context, MatrixView<const float> x,
             const float* weight, float eps, MatrixView<float> y);

// Interleaved rotary embedding in place: pair i of a row is (x[2i], x[2i+1]),
// turned by the angle whose cosine and sine are row `positions[r /
// rows_per_position]` of the tables, each [max_position, cols / 2] float32,
// amplitude included.
struct RopeTables {
  MatrixView<const float> cos;
  MatrixView<const float> sin;
};
void ApplyRope(const CpuContext& context, MatrixView<float> x,
               std::span<const int32_t> positions, int rows_per_position,
               const RopeTables& tables);

// Fills row p of the tables, each [max_position, frequencies.size()], with
// amplitude * cos(p * f_i) and sin: own functions, the same on every CPU.
void FillRopeTables(std::span<const double> frequencies, double amplitude,
                    MatrixView<float> cos, MatrixView<float> sin);

// y = silu(gate) * up, elementwise; y may be gate.
void SiluMul(const CpuContext& context, MatrixView<const float> gate,
             MatrixView<const float> up, MatrixView<float> y);

// x += y.
void AddInPlace(const CpuContext& context, MatrixView<float> x,
                MatrixView<const float> y);

}  // namespace baton

#endif  // BATON_KERNELS_ELEMENTWISE_H_
