#include "kernels/reference/elementwise_reference.h"

#include <cmath>

namespace baton {

std::vector<double> ReferenceRmsNorm(const std::vector<float>& x,
                                     const std::vector<float>& weight,
                                     double eps) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * value;
  const double inverse =
      1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<double>(weight[i]) * x[i] * inverse;
  }
  return y;
}

std::vector<double> ReferenceRope(const std::vector<float>& x,
                                  const std::vector<double>& angles) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < angles.size(); ++i) {
    const double c = std::cos(angles[i]);
    const double s = std::sin(angles[i]);
    y[2 * i] = x[2 * i] * c - x[2 * i + 1] * s;
    y[2 * i + 1] = x[2 * i + 1] * c + x[2 * i] * s;
  }
  return y;
}

double ReferenceSiluMul(double gate, double up) {
  return gate / (1 + std::exp(-gate)) * up;
}

}  // namespace baton
