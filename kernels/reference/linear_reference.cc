#include "kernels/reference/linear_reference.h"

#include <algorithm>
#include <cmath>

namespace baton {
namespace {

float BlockSum(const float* x, const float* w, int begin, int end) {
  float sum = 0;
  for (int k = begin; k < end; ++k) sum = std::fma(x[k], w[k], sum);
  return sum;
}

}  // namespace

void ReferenceLinear(MatrixView<const float> x, MatrixView<const float> weight,
                     MatrixView<float> y) {
  const int in = x.cols;
  for (int r = 0; r < x.rows; ++r) {
    for (int o = 0; o < weight.rows; ++o) {
      const float* w = weight.row(o);
      float total = BlockSum(x.row(r), w, 0, std::min(in, 512));
      for (int k = 512; k < in; k += 512) {
        total = total + BlockSum(x.row(r), w, k, std::min(in, k + 512));
      }
      y.row(r)[o] = total;
    }
  }
}

double ReferenceDot(const float* x, const float* weight, int in) {
  double sum = 0;
  for (int k = 0; k < in; ++k) sum += static_cast<double>(x[k]) * weight[k];
  return sum;
}

}  // namespace baton
