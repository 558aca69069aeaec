// Expert routing in double precision, by sorting.
#ifndef BATON_KERNELS_REFERENCE_ROUTE_REFERENCE_H_
#define BATON_KERNELS_REFERENCE_ROUTE_REFERENCE_H_

#include <vector>

#include "kernels/route_experts.h"

namespace baton {

struct ReferenceRoute {
  std::vector<int> experts;
  std::vector<double> weights;
  // The smallest gap that decided something: where it is tiny, float arithmetic
  // may decide otherwise.
  double margin = 0;
};

ReferenceRoute ReferenceRouteExperts(const RoutingOptions& options,
                                     const std::vector<float>& logits);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_ROUTE_REFERENCE_H_
