// What a model's generation_config.json says about sampling and ending.
#ifndef BATON_SERVER_TEXT_GENERATION_CONFIG_H_
#define BATON_SERVER_TEXT_GENERATION_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Defaults for requests; absent where the file says nothing, or null. Ranges
// are those of SamplingParams in inference.proto.
struct GenerationConfig {
  std::vector<uint32_t> eos_token_ids;  // Each below config.json's vocab_size.
  std::optional<float> temperature;     // 0 where do_sample is false.
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;  // 0 is off.
  std::optional<float> min_p;
};

// Reads generation_config.json, which may be missing, and config.json, whose
// eos_token_id counts where the former has none. Other fields (lengths, beams,
// penalties) are not defaults of this server and are not read. Errors name file
// and field.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(
    const std::string& model_folder);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_GENERATION_CONFIG_H_
