// The little of config.json that concerns text.
#ifndef BATON_SERVER_TEXT_MODEL_TEXT_CONFIG_H_
#define BATON_SERVER_TEXT_MODEL_TEXT_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/json_file.h"

namespace baton {

// Of one file.
inline constexpr size_t kMaxEosTokenIds = 64;

struct ModelTextConfig {
  uint32_t vocab_size = 0;              // The logits' width.
  std::vector<uint32_t> eos_token_ids;  // Each below vocab_size; maybe none.
};

// Errors name file and field.
absl::StatusOr<ModelTextConfig> LoadModelTextConfig(
    const std::string& model_folder);

// The field eos_token_id of any of a model's files: one id or an array of them;
// nothing where it is absent; kMaxEosTokenIds at most.
absl::StatusOr<std::vector<uint32_t>> ReadEosTokenIds(const JsonObject& object,
                                                      uint32_t vocab_size);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_MODEL_TEXT_CONFIG_H_
