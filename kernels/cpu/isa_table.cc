#include "kernels/cpu/isa_kernels.h"

namespace baton::BATON_ISA_NAMESPACE {

const KernelTable kKernels = {
    .linear = LinearKernel,
    .rms_norm = RmsNormKernel,
    .apply_rope = ApplyRopeKernel,
    .silu_mul = SiluMulKernel,
    .add_in_place = AddInPlaceKernel,
    .combine_experts = CombineExpertsKernel,
    .route_experts = RouteExpertsKernel,
    .attention = AttentionKernel,
    .modify_logits = ModifyLogitsKernel,
    .draw = DrawKernel,
    .score = ScoreKernel,
};

}  // namespace baton::BATON_ISA_NAMESPACE
