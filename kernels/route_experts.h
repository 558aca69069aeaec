// Which experts a token goes to, and with what weights.
#ifndef BATON_KERNELS_ROUTE_EXPERTS_H_
#define BATON_KERNELS_ROUTE_EXPERTS_H_

#include <cstdint>

#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

enum class RoutingMethod {
  kGreedy,              // Top-k of all scores.
  kGroupLimitedGreedy,  // A group's score is its largest; the best groups stay.
  kNoAuxTc,  // Selection by score + bias; a group's score is the sum of its two
             // largest.
};
enum class ScoringFunction { kSoftmax, kSigmoid };

// DeepSeek-V2 and V3 routing; the rest of a masked group counts as -infinity.
struct RoutingOptions {
  RoutingMethod method = RoutingMethod::kGreedy;
  ScoringFunction scoring = ScoringFunction::kSoftmax;
  int num_groups = 1;
  int num_kept_groups = 1;
  int top_k = 1;
  bool normalize = false;  // Divide by the sum of the selected scores + 1e-20.
  float scaling_factor = 1;
  const float* bias = nullptr;  // [experts], for kNoAuxTc alone.
};

// The most experts that a router may have.
inline constexpr int kMaxRoutedExperts = 1024;

// logits [tokens, experts] float32; experts and weights [tokens, top_k], in
// falling order of the selection's score, ties to the lower index. The weight
// is the score without bias. Each token's result depends on its own logits
// alone.
// REQUIRES: num_groups divides the experts, num_kept_groups <= num_groups, 1 <=
// top_k <= experts of the kept groups.
void RouteExperts(const CpuContext& context, const RoutingOptions& options,
                  MatrixView<const float> logits, MatrixView<int32_t> experts,
                  MatrixView<float> weights);

// y[t] = shared[t] + sum over k in top-k order of weights[t, k] * routed[t *
// top_k + k], one fused multiply-add a term. `y` may be `shared`.
void CombineExperts(const CpuContext& context, MatrixView<const float> shared,
                    MatrixView<const float> routed,
                    MatrixView<const float> weights, MatrixView<float> y);

}  // namespace baton

#endif  // BATON_KERNELS_ROUTE_EXPERTS_H_
