// The definition of y = x W^T, as plain loops.
#ifndef BATON_KERNELS_REFERENCE_LINEAR_REFERENCE_H_
#define BATON_KERNELS_REFERENCE_LINEAR_REFERENCE_H_

#include "kernels/matrix_view.h"

namespace baton {

// Bit for bit what Linear gives: blocks of 512 k, FMA ascending from zero, the
// blocks' sums added in order. weight: [out, in].
void ReferenceLinear(MatrixView<const float> x, MatrixView<const float> weight,
                     MatrixView<float> y);

// The same in double precision: what Linear approximates.
double ReferenceDot(const float* x, const float* weight, int in);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_LINEAR_REFERENCE_H_
