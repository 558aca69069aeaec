#include "server/text/generation_config.h"

#include <limits>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "server/text/json_file.h"
#include "server/text/model_text_config.h"

namespace baton {
namespace {

// Workers refuse what is below it, but for 0.
constexpr float kMinTemperature = 1e-30f;
constexpr uint32_t kMaxTopK = std::numeric_limits<int32_t>::max();

// A number from `min` to `max`; without `min` itself where `open`.
struct Range {
  float min;
  float max;
  bool open = false;
};

absl::StatusOr<std::optional<float>> NumberIn(const JsonObject& object,
                                              const char* key, Range range) {
  ASSIGN_OR_RETURN(const std::optional<double> number, object.Number(key));
  if (!number.has_value()) return std::nullopt;
  const auto value = static_cast<float>(*number);
  const bool is_inside = value >= range.min && value <= range.max &&
                         !(range.open && value == range.min);
  if (!is_inside) {
    return object.Error(key, (range.open ? "is not above " : "is not from ") +
                                 std::to_string(range.min) + " up to " +
                                 std::to_string(range.max));
  }
  return value;
}

absl::Status ReadSampling(const JsonObject& object, GenerationConfig* config) {
  ASSIGN_OR_RETURN(config->temperature,
                   NumberIn(object, "temperature", {.min = 0, .max = 100}));
  if (const float temperature = config->temperature.value_or(0);
      temperature != 0 && temperature < kMinTemperature) {
    return object.Error("temperature", "is neither 0 nor from 1e-30 up to 100");
  }
  ASSIGN_OR_RETURN(config->top_p, NumberIn(object, "top_p",
                                           {.min = 0, .max = 1, .open = true}));
  ASSIGN_OR_RETURN(config->top_k, object.Unsigned("top_k", kMaxTopK));
  ASSIGN_OR_RETURN(config->min_p,
                   NumberIn(object, "min_p", {.min = 0, .max = 1}));
  ASSIGN_OR_RETURN(const std::optional<bool> do_sample,
                   object.Bool("do_sample"));
  if (!do_sample.value_or(true)) config->temperature = 0;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationConfig> LoadGenerationConfig(
    const std::string& model_folder) {
  ASSIGN_OR_RETURN(const ModelTextConfig model,
                   LoadModelTextConfig(model_folder));
  GenerationConfig config;
  const absl::StatusOr<JsonFile> file =
      JsonFile::Read(model_folder + "/generation_config.json");
  if (file.ok()) {
    const JsonObject root = file->root();
    RETURN_IF_ERROR(ReadSampling(root, &config));
    ASSIGN_OR_RETURN(config.eos_token_ids,
                     ReadEosTokenIds(root, model.vocab_size));
  } else if (!absl::IsNotFound(file.status())) {
    return file.status();
  }
  if (config.eos_token_ids.empty()) config.eos_token_ids = model.eos_token_ids;
  return config;
}

}  // namespace baton
