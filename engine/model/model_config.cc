#include "engine/model/model_config.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace baton {
namespace {

using nlohmann::json;

// Limits far above any model, so that products of two or three sizes fit.
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxHidden = 1 << 16;
constexpr int kMaxLayers = 1024;
constexpr int kMaxMtpLayers = 16;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxExpertWidth = 1 << 18;
constexpr int kMaxHeads = 1024;
constexpr int kMaxLatent = 1 << 14;
constexpr int kMaxHeadDim = 4096;

constexpr int kMaxSharedExperts = 64;
constexpr int kMaxPositions = 1 << 24;

// Reads the fields of one object. The first fault is kept and later reads give
// whatever; look at status() before using anything.
class FieldReader {
 public:
  // `object` outlives the reader; what is no object has no fields.
  FieldReader(const json& object, std::string path)
      : object_(object), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }

  // Null and absent are the same.
  bool Has(const char* key) const { return Find(key) != nullptr; }
  const json& Value(const char* key) const { return *Find(key); }

  int Int(const char* key, int min, int max) {
    const json* value = Find(key);
    if (value != nullptr && value->is_number_integer() &&
        InRange(*value, min, max)) {
      return value->get<int>();
    }
    Reject(key, absl::StrCat("an integer from ", min, " to ", max));
    return min;
  }
  int IntOr(const char* key, int absent, int min, int max) {
    return Has(key) ? Int(key, min, max) : absent;
  }

  double Number(const char* key, double min, double max) {
    const json* value = Find(key);
    if (value != nullptr && value->is_number() && value->get<double>() >= min &&
        value->get<double>() <= max) {
      return value->get<double>();
    }
    Reject(key, absl::StrCat("a number from ", min, " to ", max));
    return min;
  }
  double NumberOr(const char* key, double absent, double min, double max) {
    return Has(key) ? Number(key, min, max) : absent;
  }

  bool BoolOr(const char* key, bool absent) {
    const json* value = Find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) Reject(key, "true or false");
    return value->is_boolean() && value->get<bool>();
  }

  std::string TextOr(const char* key, const char* absent) {
    const json* value = Find(key);
    if (value == nullptr) return absent;
    if (!value->is_string()) Reject(key, "a string");
    return value->is_string() ? value->get<std::string>() : absent;
  }

  // One of the table's names.
  template <typename T>
  T ChoiceOr(const char* key, T absent,
             std::initializer_list<std::pair<const char*, T>> table) {
    if (!Has(key)) return absent;
    const std::string text = TextOr(key, "");
    std::string names;
    for (const auto& [name, value] : table) {
      if (text == name) return value;
      absl::StrAppend(&names, names.empty() ? "" : " or ", name);
    }
    Reject(key, names, absl::StatusCode::kUnimplemented);
    return absent;
  }

  // What the family's configuration knows, but no released model uses.
  void OnlySupports(const char* key, const json& supported) {
    const json* value = Find(key);
    if (value != nullptr && *value != supported) {
      Reject(key, supported.dump(), absl::StatusCode::kUnimplemented);
    }
  }

  void Reject(const char* key, const std::string& allowed,
              absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    if (!status_.ok()) return;
    const json* value = Find(key);
    std::string text = value == nullptr ? "missing" : value->dump();
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    status_ = absl::Status(code, absl::StrCat(path_, key, " is ", text,
                                              ", but must be ", allowed));
  }

 private:
  const json* Find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  static bool InRange(const json& value, int min, int max) {
    if (value.is_number_unsigned()) {
      return value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX) &&
             value.get<int64_t>() >= min && value.get<int64_t>() <= max;
    }
    return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  }

  const json& object_;
  const std::string path_;  // "FILE: " and the objects on the way.
  absl::Status status_;
};

void ReadArchitecture(FieldReader* fields, ModelConfig* config) {
  using enum ModelArchitecture;
  if (!fields->Has("architectures") && !fields->Has("model_type")) {
    return fields->Reject("architectures", "a list of one class name");
  }
  config->architecture = fields->ChoiceOr<ModelArchitecture>(
      "model_type", kDeepSeekV3,
      {{"deepseek_v2", kDeepSeekV2}, {"deepseek_v3", kDeepSeekV3}});
  if (!fields->Has("architectures")) return;
  const ModelArchitecture by_type = config->architecture;
  const json& names = fields->Value("architectures");
  if (names == json::array({"DeepseekV2ForCausalLM"})) {
    config->architecture = kDeepSeekV2;
  } else if (names == json::array({"DeepseekV3ForCausalLM"})) {
    config->architecture = kDeepSeekV3;
  } else {
    fields->Reject("architectures",
                   R"(["DeepseekV2ForCausalLM"] or ["DeepseekV3ForCausalLM"])",
                   absl::StatusCode::kUnimplemented);
  }
  if (fields->Has("model_type") && config->architecture != by_type) {
    fields->Reject("model_type",
                   absl::StrCat("that of architectures = ", names.dump()));
  }
}

void ReadShape(FieldReader* fields, ModelConfig* config) {
  config->vocab_size = fields->Int("vocab_size", 1, kMaxVocab);
  config->hidden_size = fields->Int("hidden_size", 1, kMaxHidden);
  config->num_layers = fields->Int("num_hidden_layers", 1, kMaxLayers);
  config->num_mtp_layers =
      fields->IntOr("num_nextn_predict_layers", 0, 0, kMaxMtpLayers);
  config->intermediate_size = fields->Int("intermediate_size", 1, kMaxWidth);
  config->num_heads = fields->Int("num_attention_heads", 1, kMaxHeads);
  config->q_lora_rank = fields->IntOr("q_lora_rank", 0, 1, kMaxHidden);
  config->kv_lora_rank = fields->Int("kv_lora_rank", 1, kMaxLatent);
  config->nope_dim = fields->Int("qk_nope_head_dim", 1, kMaxHeadDim);
  config->rope_dim = fields->Int("qk_rope_head_dim", 2, kMaxHeadDim);
  if (config->rope_dim % 2 != 0) {
    fields->Reject("qk_rope_head_dim", "even: it is turned pair by pair");
  }
  config->v_dim = fields->Int("v_head_dim", 1, kMaxHeadDim);
  config->max_position =
      fields->Int("max_position_embeddings", 1, kMaxPositions);
  config->rms_norm_eps =
      static_cast<float>(fields->NumberOr("rms_norm_eps", 1e-6, 1e-20, 1));
  config->tied_embeddings = fields->BoolOr("tie_word_embeddings", false);
}

void CheckUnsupported(FieldReader* fields, const ModelConfig& config) {
  fields->OnlySupports("attention_bias", false);
  fields->OnlySupports("mlp_bias", false);
  fields->OnlySupports("hidden_act", "silu");
  fields->OnlySupports("rope_interleave", true);
  fields->OnlySupports("num_key_value_heads", config.num_heads);
}

// The routing alone; the numbers of experts are read.
void ReadRouting(FieldReader* fields, const ModelConfig& config,
                 ExpertsConfig* experts) {
  const bool v3 = config.architecture == ModelArchitecture::kDeepSeekV3;
  RoutingOptions& routing = experts->routing;
  routing.method = fields->ChoiceOr<RoutingMethod>(
      "topk_method", v3 ? RoutingMethod::kNoAuxTc : RoutingMethod::kGreedy,
      {{"greedy", RoutingMethod::kGreedy},
       {"group_limited_greedy", RoutingMethod::kGroupLimitedGreedy},
       {"noaux_tc", RoutingMethod::kNoAuxTc}});
  routing.scoring = fields->ChoiceOr<ScoringFunction>(
      "scoring_func",
      v3 ? ScoringFunction::kSigmoid : ScoringFunction::kSoftmax,
      {{"softmax", ScoringFunction::kSoftmax},
       {"sigmoid", ScoringFunction::kSigmoid}});
  routing.top_k = fields->Int("num_experts_per_tok", 1, experts->num_routed);
  routing.normalize = fields->BoolOr("norm_topk_prob", v3);
  routing.scaling_factor =
      static_cast<float>(fields->Number("routed_scaling_factor", 1e-6, 1e6));
  // V2's own code either normalises several weights or scales them; V3's does
  // both, always.
  if (!v3) {
    routing.normalize = routing.normalize && routing.top_k > 1;
    if (routing.normalize) routing.scaling_factor = 1;
  }
}

// Greedy selection knows no groups, whatever their fields say.
void ReadGroups(FieldReader* fields, ExpertsConfig* experts) {
  RoutingOptions& routing = experts->routing;
  if (routing.method == RoutingMethod::kGreedy || !fields->status().ok()) {
    return;
  }
  routing.num_groups = fields->IntOr("n_group", 1, 1, experts->num_routed);
  routing.num_kept_groups =
      fields->IntOr("topk_group", 1, 1, routing.num_groups);
  if (!fields->status().ok()) return;
  const int group_size = experts->num_routed / routing.num_groups;
  if (experts->num_routed % routing.num_groups != 0) {
    fields->Reject("n_group", absl::StrCat("a divisor of n_routed_experts = ",
                                           experts->num_routed));
  } else if (routing.method == RoutingMethod::kNoAuxTc &&
             routing.num_groups > 1 && group_size < 2) {
    fields->Reject("n_group",
                   "so small that a group has two experts (noaux_tc)");
  } else if (routing.top_k > routing.num_kept_groups * group_size) {
    fields->Reject(
        "num_experts_per_tok",
        absl::StrCat("at most the ", routing.num_kept_groups * group_size,
                     " experts of topk_group groups"));
  }
}

void ReadExperts(FieldReader* fields, ModelConfig* config) {
  if (!fields->Has("n_routed_experts")) return;  // All layers are dense.
  ExpertsConfig experts;
  experts.num_routed = fields->Int("n_routed_experts", 1, kMaxRoutedExperts);
  experts.num_shared =
      fields->IntOr("n_shared_experts", 0, 0, kMaxSharedExperts);
  experts.intermediate_size =
      fields->Int("moe_intermediate_size", 1, kMaxExpertWidth);
  experts.first_dense_layers =
      fields->Int("first_k_dense_replace", 0, kMaxLayers);
  experts.layer_frequency = fields->IntOr("moe_layer_freq", 1, 1, kMaxLayers);
  ReadRouting(fields, *config, &experts);
  ReadGroups(fields, &experts);
  config->experts = experts;
}

absl::StatusOr<std::optional<YarnScaling>> ReadYarn(const json& object,
                                                    const std::string& path) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", object.dump(), ", but must be an object"));
  }
  FieldReader fields(object, absl::StrCat(path, "."));
  const char* type_key = fields.Has("rope_type") ? "rope_type" : "type";
  const bool is_yarn =
      fields.ChoiceOr(type_key, false, {{"yarn", true}, {"default", false}});
  RETURN_IF_ERROR(fields.status());
  if (!is_yarn) return std::nullopt;
  YarnScaling yarn;
  yarn.factor = fields.Number("factor", 1, 1e4);
  yarn.original_max_position =
      fields.Number("original_max_position_embeddings", 1, kMaxPositions);
  yarn.beta_fast = fields.NumberOr("beta_fast", 32, 1e-3, 1e6);
  yarn.beta_slow = fields.NumberOr("beta_slow", 1, 1e-3, yarn.beta_fast);
  yarn.mscale = fields.NumberOr("mscale", 1, 0, 100);
  yarn.mscale_all_dim = fields.NumberOr("mscale_all_dim", 0, 0, 100);
  fields.OnlySupports("attention_factor", nullptr);
  fields.OnlySupports("truncate", true);
  RETURN_IF_ERROR(fields.status());
  return yarn;
}

// Newer files keep all of it in `rope_parameters`.
absl::Status ReadRope(const json& object, const std::string& source,
                      ModelConfig* config) {
  FieldReader fields(object, absl::StrCat(source, ": "));
  const char* scaling_key =
      fields.Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  json scaling = json::object();
  if (fields.Has(scaling_key)) scaling = fields.Value(scaling_key);
  const std::string path = absl::StrCat(source, ": ", scaling_key);
  ASSIGN_OR_RETURN(config->yarn, ReadYarn(scaling, path));
  FieldReader scaling_fields(scaling, absl::StrCat(path, "."));
  FieldReader& owner =
      scaling_fields.Has("rope_theta") ? scaling_fields : fields;
  config->rope_theta = owner.NumberOr("rope_theta", 10000, 2, 1e12);
  return owner.status();
}

absl::Status ReadQuantization(const json& object, const std::string& source,
                              ModelConfig* config) {
  FieldReader fields(object, absl::StrCat(source, ": "));
  if (!fields.Has("quantization_config")) return absl::OkStatus();
  FieldReader quantization(fields.Value("quantization_config"),
                           absl::StrCat(source, ": quantization_config."));
  if (!quantization.Has("quant_method")) {
    quantization.Reject("quant_method", "fp8",
                        absl::StatusCode::kUnimplemented);
  }
  if (!quantization.Has("weight_block_size")) {
    quantization.Reject("weight_block_size", "[128,128]",
                        absl::StatusCode::kUnimplemented);
  }
  quantization.OnlySupports("quant_method", "fp8");
  quantization.OnlySupports("fmt", "e4m3");
  quantization.OnlySupports("weight_block_size", json::array({128, 128}));
  config->fp8_blocks = true;
  return quantization.status();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text,
                                             const std::string& source) {
  ASSIGN_OR_RETURN(const json object, ParseJson(text, source));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": not a JSON object"));
  }
  ModelConfig config;
  FieldReader fields(object, absl::StrCat(source, ": "));
  ReadArchitecture(&fields, &config);
  ReadShape(&fields, &config);
  CheckUnsupported(&fields, config);
  ReadExperts(&fields, &config);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(ReadRope(object, source, &config));
  RETURN_IF_ERROR(ReadQuantization(object, source, &config));
  return config;
}

}  // namespace baton
