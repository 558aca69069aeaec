// Row kernels in double precision.
#ifndef BATON_KERNELS_REFERENCE_ELEMENTWISE_REFERENCE_H_
#define BATON_KERNELS_REFERENCE_ELEMENTWISE_REFERENCE_H_

#include <vector>

namespace baton {

std::vector<double> ReferenceRmsNorm(const std::vector<float>& x,
                                     const std::vector<float>& weight,
                                     double eps);

// x turned by `angle` of each pair (x[2 i], x[2 i + 1]).
std::vector<double> ReferenceRope(const std::vector<float>& x,
                                  const std::vector<double>& angles);

double ReferenceSiluMul(double gate, double up);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_ELEMENTWISE_REFERENCE_H_
