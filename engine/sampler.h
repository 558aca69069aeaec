// From a step's logits to its tokens.
#ifndef BATON_ENGINE_SAMPLER_H_
#define BATON_ENGINE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler_output.h"
#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"
#include "kernels/sample.h"

namespace baton {

// One step's draws. Vectors keep their capacity from step to step.
struct SamplerOutput {
  std::vector<SampledToken> tokens;  // [samples]
  // False: the row's logits were no distribution, and its token means nothing.
  std::vector<uint8_t> sampleable;  // [samples]
};

// The kernel's parameters for each sample row, in order.
void BuildSampleParams(std::span<const SampleRow> samples,
                       std::vector<SampleParams>* params);

// Draws params[i] from logits row samples[i].logits_row. Rows that hold NaN or
// +infinity are flattened, drawn in vain and marked. On the device thread.
void DrawTokens(const CpuContext& context, MatrixView<float> logits,
                std::span<const SampleRow> samples,
                std::span<const SampleParams> params, SamplerOutput* output);

}  // namespace baton

#endif  // BATON_ENGINE_SAMPLER_H_
