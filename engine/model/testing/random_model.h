// Small model folders with random weights, of any shape of the family.
#ifndef BATON_ENGINE_MODEL_TESTING_RANDOM_MODEL_H_
#define BATON_ENGINE_MODEL_TESTING_RANDOM_MODEL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"
#include "engine/model/testing/safetensors_writer.h"

namespace baton {

// A V3-like configuration of about 100,000 weights: 3 layers, the first dense.
nlohmann::json SmallV3Config();
// The same as V2: softmax, group_limited_greedy, two shared experts.
nlohmann::json SmallV2Config();

// Every tensor that the configuration asks for (MTP layers too), scaled so that
// each part matters.
std::vector<TensorToWrite> RandomTensors(const nlohmann::json& config,
                                         uint64_t seed, TensorDtype dtype);

// config.json and model.safetensors.
void WriteModel(const std::string& folder, const nlohmann::json& config,
                const std::vector<TensorToWrite>& tensors);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TESTING_RANDOM_MODEL_H_
