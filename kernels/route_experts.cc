#include "kernels/route_experts.h"

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {

void RouteExperts(const CpuContext& context, const RoutingOptions& options,
                  MatrixView<const float> logits, MatrixView<int32_t> experts,
                  MatrixView<float> weights) {
  CHECK_LE(logits.cols, kMaxRoutedExperts);
  CHECK_GE(options.num_groups, 1);
  CHECK_EQ(logits.cols % options.num_groups, 0);
  CHECK_GE(options.num_kept_groups, 1);
  CHECK_LE(options.num_kept_groups, options.num_groups);
  CHECK_GE(options.top_k, 1);
  CHECK_LE(options.top_k,
           logits.cols / options.num_groups * options.num_kept_groups);
  CHECK_EQ(experts.rows, logits.rows);
  CHECK_EQ(weights.rows, logits.rows);
  CHECK_EQ(experts.cols, options.top_k);
  CHECK_EQ(weights.cols, options.top_k);
  CHECK_EQ(options.bias != nullptr, options.method == RoutingMethod::kNoAuxTc);
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelForRows(context, logits.rows, 4 * logits.cols, [&](int r) {
    kernels.route_experts({.options = &options,
                           .logits = logits.row(r),
                           .num_experts = logits.cols,
                           .experts = experts.row(r),
                           .weights = weights.row(r)});
  });
}

void CombineExperts(const CpuContext& context, MatrixView<const float> shared,
                    MatrixView<const float> routed,
                    MatrixView<const float> weights, MatrixView<float> y) {
  const int top_k = weights.cols;
  CHECK_EQ(shared.rows, y.rows);
  CHECK_EQ(shared.cols, y.cols);
  CHECK_EQ(weights.rows, y.rows);
  CHECK_EQ(routed.rows, y.rows * top_k);
  CHECK_EQ(routed.cols, y.cols);
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelForRows(context, y.rows, y.cols * (top_k + 1), [&](int r) {
    kernels.combine_experts({.shared = shared.row(r),
                             .routed = routed.row(r * top_k),
                             .routed_stride = routed.stride,
                             .weights = weights.row(r),
                             .top_k = top_k,
                             .cols = y.cols,
                             .y = y.row(r)});
  });
}

}  // namespace baton
