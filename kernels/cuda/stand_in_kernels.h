// A step's kernels while there is no model: real Remap, length correction,
// verification and report around a forward pass of set duration.
#ifndef BATON_KERNELS_CUDA_STAND_IN_KERNELS_H_
#define BATON_KERNELS_CUDA_STAND_IN_KERNELS_H_

#include <cstdint>

#include "cuda_runtime_api.h"
#include "kernels/cuda/stand_in_step.h"

namespace baton {

// For up to `bucket` sequences. Can be captured.
cudaError_t LaunchStandInStep(const StandInStep& step, uint32_t bucket,
                              cudaStream_t stream);

}  // namespace baton

#endif  // BATON_KERNELS_CUDA_STAND_IN_KERNELS_H_
