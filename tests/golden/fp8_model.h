// The FP8 twin of a bf16 model folder, in DeepSeek-V3's released format.
#ifndef BATON_TESTS_GOLDEN_FP8_MODEL_H_
#define BATON_TESTS_GOLDEN_FP8_MODEL_H_

#include <string>
#include <vector>

#include "engine/model/testing/safetensors_writer.h"

namespace baton {

// All tensors of `source_folder`; each projection (of attention and of every
// MLP) as E4M3 with its `_scale_inv`: for each block of 128 x 128, scale
// = largest magnitude / 448 and code = E4M3 nearest to weight / scale.
std::vector<TensorToWrite> QuantizeModel(const std::string& source_folder);

// A fresh folder with that model, and a copy of `config_path`.
std::string WriteQuantizedModel(const std::string& source_folder,
                                const std::string& config_path);

// 32 hex digits over dtype, shape and content, as Hash128 defines it.
std::string TensorHash(const TensorToWrite& tensor);

}  // namespace baton

#endif  // BATON_TESTS_GOLDEN_FP8_MODEL_H_
