// What the kernel sources of one instruction set define.
#ifndef BATON_KERNELS_CPU_ISA_KERNELS_H_
#define BATON_KERNELS_CPU_ISA_KERNELS_H_

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector.h"

namespace baton::BATON_ISA_NAMESPACE {

void LinearKernel(const LinearBlock& block);
void RmsNormKernel(const float* x, const float* weight, float eps, int cols,
                   float* y);
void ApplyRopeKernel(float* x, const float* cos, const float* sin, int cols);
void SiluMulKernel(const float* gate, const float* up, int cols, float* y);
void AddInPlaceKernel(float* x, const float* y, int cols);
void CombineExpertsKernel(const CombineRow& row);
void RouteExpertsKernel(const RouteRow& row);
void AttentionKernel(const AttentionBlock& block);
void ModifyLogitsKernel(const LogitsRow& row);
void DrawKernel(DrawRow& row);
void ScoreKernel(ScoreRow& row);

extern const KernelTable kKernels;

}  // namespace baton::BATON_ISA_NAMESPACE

#endif  // BATON_KERNELS_CPU_ISA_KERNELS_H_
