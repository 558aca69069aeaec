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

enum class ModelParts { kMain, kMainAndDrafter };

// Name, shape and dtype of every tensor that `config` asks for: NOT_FOUND or
// INVALID_ARGUMENT naming file and tensor. Each MTP layer may be absent as a
// whole, but for the first, which is the drafter; none may pass for an ordinary
// one. A layer's tensor that `config` has no place for is refused, since
// without it the model is another one: but for buffers (inv_freq) and MTP
// layers beyond num_nextn_predict_layers. Tensors outside the layers are
// nobody's business.
absl::Status CheckTensors(const ModelConfig& config,
                          const ModelTensors& tensors, WeightStorage storage,
                          ModelParts parts);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TENSOR_CHECK_H_
