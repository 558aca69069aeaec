// Rotary frequencies and the attention scale that YaRN asks for. Source: the
// YaRN paper (arXiv 2309.00071) and DeepSeek-V3's inference code.
#ifndef BATON_ENGINE_MODEL_ROPE_H_
#define BATON_ENGINE_MODEL_ROPE_H_

#include <vector>

#include "engine/model/model_config.h"

namespace baton {

// Of each pair: theta^(-2i / rope_dim), under YaRN blended with the same over
// `factor`. Own functions alone, so the same on every machine.
std::vector<double> RopeFrequencies(const ModelConfig& config);

// What cosine and sine are multiplied with; 1 for all released models.
double RopeAmplitude(const ModelConfig& config);

// (nope_dim + rope_dim)^-1/2, under YaRN times (0.1 mscale_all_dim ln(factor)
// + 1)^2.
float SoftmaxScale(const ModelConfig& config);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_ROPE_H_
