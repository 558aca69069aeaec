#include "kernels/elementwise.h"

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {
namespace {

void CheckSameShape(MatrixView<const float> a, MatrixView<const float> b) {
  CHECK_EQ(a.rows, b.rows);
  CHECK_EQ(a.cols, b.cols);
}

}  // namespace

void RmsNorm(const CpuContext& context, MatrixView<const float> x,
             const float* weight, float eps, MatrixView<float> y) {
  CheckSameShape(x, y);
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelForRows(context, x.rows, x.cols, [&](int r) {
    kernels.rms_norm(x.row(r), weight, eps, x.cols, y.row(r));
  });
}

void ApplyRope(const CpuContext& context, MatrixView<float> x,
               std::span<const int32_t> positions, int rows_per_position,
               const RopeTables& tables) {
  CHECK_EQ(x.cols % 2, 0);
  CHECK_EQ(tables.cos.cols, x.cols / 2);
  CheckSameShape(tables.cos, tables.sin);
  CHECK_EQ(static_cast<size_t>(x.rows),
           positions.size() * static_cast<size_t>(rows_per_position));
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelForRows(context, x.rows, x.cols, [&](int r) {
    const int position = positions[static_cast<size_t>(r) /
                                   static_cast<size_t>(rows_per_position)];
    DCHECK(0 <= position && position < tables.cos.rows);
    kernels.apply_rope(x.row(r), tables.cos.row(position),
                       tables.sin.row(position), x.cols);
  });
}

void SiluMul(const CpuContext& context, MatrixView<const float> gate,
             MatrixView<const float> up, MatrixView<float> y) {
  CheckSameShape(gate, up);
  CheckSameShape(gate, y);
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelForRows(context, y.rows, y.cols, [&](int r) {
    kernels.silu_mul(gate.row(r), up.row(r), y.cols, y.row(r));
  });
}

void AddInPlace(const CpuContext& context, MatrixView<float> x,
                MatrixView<const float> y) {
  CheckSameShape(x, y);
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelForRows(context, x.rows, x.cols, [&](int r) {
    kernels.add_in_place(x.row(r), y.row(r), x.cols);
  });
}

}  // namespace baton
