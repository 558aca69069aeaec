// Which tensors a model folder must hold, and that it does.
#ifndef BATON_ENGINE_MODEL_TENSOR_CHECK_H_
#define BATON_ENGINE_MODEL_TENSOR_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_storage.h"

namespace baton {

// "model.layers.3."
std::string LayerPrefix(int layer);

// Name, shape and dtype of every tensor that `config` asks for: NOT_FOUND or
// INVALID_ARGUMENT naming file and tensor. The MTP layers may be absent as a
// whole, but none may pass for an ordinary one. Tensors beyond those are
// nobody's business.
absl::Status CheckTensors(const ModelConfig& config,
                          const ModelTensors& tensors, WeightStorage storage);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TENSOR_CHECK_H_
