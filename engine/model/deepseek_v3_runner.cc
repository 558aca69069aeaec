#include "engine/model/deepseek_v3_runner.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/local_expert_dispatch.h"
#include "comm/slot_table.h"
#include "engine/model/deepseek_v3.h"
#include "engine/model/deepseek_v3_weights.h"
#include "engine/model/fingerprint.h"
#include "engine/model/layer_experts.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor_check.h"
#include "engine/model/tensor_files.h"

namespace baton {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxRows = 1 << 16;

absl::Status CheckRange(const char* name, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value, ", but must be from ", min, " to ", max));
}

ModelParts PartsOf(const LoadOptions& options) {
  return options.drafter ? ModelParts::kMainAndDrafter : ModelParts::kMain;
}

absl::Status CheckResidentExperts(const LoadOptions& options,
                                  const ModelConfig& config) {
  const auto& layers = options.resident_experts;
  if (layers.empty()) return absl::OkStatus();
  const size_t num_layers = ExpertLayers(config, PartsOf(options)).size();
  if (layers.size() != num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("resident_experts has ", layers.size(), " layers, but ",
                     num_layers, " of the model have experts"));
  }
  for (const std::vector<uint32_t>& experts : layers) {
    const bool ascend = std::ranges::adjacent_find(
                            experts, std::greater_equal()) == experts.end();
    const auto num_experts = static_cast<uint32_t>(config.experts->num_routed);
    if (!ascend || (!experts.empty() && experts.back() >= num_experts)) {
      return absl::InvalidArgumentError(
          absl::StrCat("resident_experts must ascend, below ", num_experts));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const LoadOptions& options, const ModelConfig& config,
                          const std::string& config_path) {
  if (options.drafter && config.num_mtp_layers == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        config_path,
        ": num_nextn_predict_layers is 0: the model has no drafter to load"));
  }
  if (options.numerics == Numerics::kFastBf16 &&
      options.weights == WeightStorage::kF32) {
    return absl::InvalidArgumentError(
        "weights are to be widened to float32, but numerics fast_bf16 multiply "
        "by bf16");
  }
  RETURN_IF_ERROR(CheckRange("max_rows", options.max_rows, 1, kMaxRows));
  RETURN_IF_ERROR(CheckRange("max_logits_rows", options.max_logits_rows, 1,
                             options.max_rows));
  RETURN_IF_ERROR(CheckRange("max_context_tokens", options.max_context_tokens,
                             0, config.max_position));
  return CheckResidentExperts(options, config);
}

struct ConfigFile {
  std::string text;
  ModelConfig config;
};

absl::StatusOr<ConfigFile> ReadConfig(const LoadOptions& options) {
  const std::string path = absl::StrCat(options.folder, "/config.json");
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(text, path));
  RETURN_IF_ERROR(CheckOptions(options, config, path));
  return ConfigFile{std::move(text), config};
}

ModelRunnerInfo MakeInfo(const ModelConfig& config,
                         const LoadOptions& options) {
  ModelRunnerInfo info;
  info.vocab_size = config.vocab_size;
  info.max_context_tokens = options.max_context_tokens > 0
                                ? options.max_context_tokens
                                : config.max_position;
  info.hidden_size = config.hidden_size;
  info.has_drafter = options.drafter;
  const size_t layer_bytes_per_token =
      LatentLayerBytes(config, options.cache_dtype) / kKvBlockTokens;
  info.cache.groups.push_back(
      {.name = "latent",
       .bytes_per_token = config.num_layers * layer_bytes_per_token});
  if (options.drafter) {
    info.cache.groups.push_back(
        {.name = "drafter", .bytes_per_token = layer_bytes_per_token});
    info.cache.tail_bytes_per_block = sizeof(float) * info.hidden_size;
  }
  info.num_expert_layers =
      static_cast<uint32_t>(ExpertLayers(config, PartsOf(options)).size());
  if (info.num_expert_layers > 0) info.num_experts = config.experts->num_routed;
  info.slots_per_rank = info.num_experts;
  info.prompt_has_own_form = options.numerics != Numerics::kExact;
  return info;
}

// Each layer's where none are given.
std::vector<ExpertSlots> IdentitySlots(const SlotTable& table,
                                       const ModelRunnerInfo& info) {
  if (info.num_ranks > 1) return {};
  return std::vector<ExpertSlots>(info.num_expert_layers, table.view());
}

ModelRunnerInfo InfoInGroup(ModelRunnerInfo alone,
                            const ExpertDispatch* dispatch) {
  if (dispatch != nullptr) {
    alone.num_ranks = static_cast<uint32_t>(dispatch->num_ranks());
    alone.slots_per_rank = static_cast<uint32_t>(dispatch->slots_per_rank());
  }
  return alone;
}

// Of one rank; null without routed experts.
std::unique_ptr<ExpertDispatch> AloneUnless(
    std::unique_ptr<ExpertDispatch> dispatch, const LoadedDeepSeekV3& weights) {
  if (dispatch != nullptr || weights.info().num_experts == 0) return dispatch;
  return std::make_unique<LocalExpertDispatch>(weights.expert_shape());
}

}  // namespace

static_assert(CacheSpec::kBlockTokens == kKvBlockTokens);

struct LoadedDeepSeekV3::Content {
  const LoadOptions options;
  DeepSeekV3Model model;  // Its experts alone change.
  const ModelRunnerInfo info;
  const std::vector<int> expert_layers;  // As numbered in the model.
  const size_t expert_bytes;
  // Of the folder; null where all experts are here for good.
  const std::unique_ptr<const TensorFiles> files;

  LayerExperts& experts(uint32_t expert_layer) {
    CHECK_LT(expert_layer, expert_layers.size());
    DeepSeekV3Weights& weights = model.weights;
    const auto layer = static_cast<size_t>(expert_layers[expert_layer]);
    return layer < weights.layers.size() ? weights.layers[layer].moe.experts
                                         : weights.drafter->layer.moe.experts;
  }
};

struct DeepSeekV3Runner::Core {
  Core(const LoadedDeepSeekV3* weights, const CpuContext& cpu_context,
       std::unique_ptr<ExpertDispatch> dispatch_or_null);

  const CpuContext cpu;
  const LoadOptions& options;
  const DeepSeekV3Model& model;
  const std::unique_ptr<ExpertDispatch> dispatch;
  const ModelRunnerInfo info;
  const SlotTable identity;
  const std::vector<ExpertSlots> identity_slots;
  DeepSeekV3Workspace workspace;
  ForwardContext context;
};

absl::Status LoadedDeepSeekV3::Check(const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ConfigFile file, ReadConfig(options));
  ASSIGN_OR_RETURN(const ModelTensors tensors,
                   ModelTensors::Open(options.folder));
  return CheckTensors(file.config, tensors, options.weights, PartsOf(options));
}

absl::StatusOr<ModelRunnerInfo> LoadedDeepSeekV3::ReadInfo(
    const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ConfigFile file, ReadConfig(options));
  return MakeInfo(file.config, options);
}

absl::StatusOr<std::unique_ptr<LoadedDeepSeekV3>> LoadedDeepSeekV3::Load(
    const LoadOptions& options, const CpuContext& cpu) {
  ASSIGN_OR_RETURN(const ConfigFile file, ReadConfig(options));
  const auto& [config_text, config] = file;
  ASSIGN_OR_RETURN(const ModelTensors tensors,
                   ModelTensors::Open(options.folder));
  const WeightOptions weight_options = {
      .storage = options.weights,
      .parts = PartsOf(options),
      .numerics = options.numerics,
      .resident_experts = options.resident_experts};
  ASSIGN_OR_RETURN(DeepSeekV3Weights weights,
                   LoadDeepSeekV3Weights(config, tensors, weight_options, cpu));
  ModelRunnerInfo info = MakeInfo(config, options);
  info.fingerprint = ModelFingerprint(
      config_text, tensors,
      {options.cache_dtype, options.drafter, options.numerics});
  // An error if what was read so far is not of the files as they were opened.
  ASSIGN_OR_RETURN(std::unique_ptr<const TensorFiles> files,
                   TensorFiles::Open(tensors));
  if (options.resident_experts.empty()) files.reset();
  DeepSeekV3Model model = MakeModel(config, std::move(weights),
                                    static_cast<int>(info.max_context_tokens));
  return std::unique_ptr<LoadedDeepSeekV3>(
      new LoadedDeepSeekV3(std::unique_ptr<Content>(new Content{
          .options = options,
          .model = std::move(model),
          .info = std::move(info),
          .expert_layers = ExpertLayers(config, PartsOf(options)),
          .expert_bytes = MaxExpertBytes(config, tensors, weight_options),
          .files = std::move(files)})));
}

LoadedDeepSeekV3::LoadedDeepSeekV3(std::unique_ptr<Content> content)
    : content_(std::move(content)) {}

LoadedDeepSeekV3::~LoadedDeepSeekV3() = default;

const ModelRunnerInfo& LoadedDeepSeekV3::info() const { return content_->info; }

ExpertShape LoadedDeepSeekV3::expert_shape() const {
  const ExpertsConfig& experts = *content_->model.config.experts;
  return {.num_experts = experts.num_routed,
          .top_k = experts.routing.top_k,
          .hidden_size = content_->model.config.hidden_size,
          .max_tokens = content_->options.max_rows};
}

bool LoadedDeepSeekV3::HasExpert(uint32_t expert_layer, uint32_t expert) const {
  CHECK_LT(expert, info().num_experts);
  return content_->experts(expert_layer).Find(expert) != nullptr;
}

absl::Status LoadedDeepSeekV3::AddExpert(uint32_t expert_layer,
                                         uint32_t expert) {
  CHECK(content_->files != nullptr) << "all experts are here for good";
  if (HasExpert(expert_layer, expert)) return absl::OkStatus();
  const int layer = content_->expert_layers[expert_layer];
  ASSIGN_OR_RETURN(const ModelTensors tensors,
                   content_->files->Read(ExpertPrefix(layer, expert)));
  ASSIGN_OR_RETURN(
      MlpWeights weights,
      LoadExpert(tensors, content_->options.weights, layer, expert));
  content_->experts(expert_layer).Put(expert, std::move(weights));
  return absl::OkStatus();
}

void LoadedDeepSeekV3::RemoveExpert(uint32_t expert_layer, uint32_t expert) {
  CHECK(content_->files != nullptr) << "all experts are here for good";
  content_->experts(expert_layer).Drop(expert);
}

size_t LoadedDeepSeekV3::expert_bytes() const { return content_->expert_bytes; }

DeepSeekV3Runner::Core::Core(const LoadedDeepSeekV3* weights,
                             const CpuContext& cpu_context,
                             std::unique_ptr<ExpertDispatch> dispatch_or_null)
    : cpu{.isa = cpu_context.isa,
          .threads = cpu_context.threads,
          .bf16_dots =
              weights->content_->options.numerics == Numerics::kFastBf16
                  ? Bf16Dots::kOn
                  : cpu_context.bf16_dots},
      options(weights->content_->options),
      model(weights->content_->model),
      dispatch(AloneUnless(std::move(dispatch_or_null), *weights)),
      info(InfoInGroup(weights->info(), dispatch.get())),
      identity(SlotTable::Identity(static_cast<int>(info.num_experts))),
      identity_slots(IdentitySlots(identity, info)),
      workspace(model.config, options.max_rows, options.max_logits_rows,
                dispatch == nullptr ? 0 : dispatch->max_rows(),
                PartsOf(options)),
      context{.cpu = &cpu,
              .model = &model,
              .dispatch = dispatch.get(),
              .workspace = &workspace,
              .cache = {},
              .expert_slots = {}} {}

absl::StatusOr<std::unique_ptr<DeepSeekV3Runner>> DeepSeekV3Runner::Load(
    const LoadOptions& options, const CpuContext& cpu) {
  ASSIGN_OR_RETURN(std::unique_ptr<const LoadedDeepSeekV3> weights,
                   LoadedDeepSeekV3::Load(options, cpu));
  auto runner = std::make_unique<DeepSeekV3Runner>(weights.get(), cpu, nullptr);
  runner->owned_ = std::move(weights);
  return runner;
}

DeepSeekV3Runner::DeepSeekV3Runner(const LoadedDeepSeekV3* weights,
                                   const CpuContext& cpu,
                                   std::unique_ptr<ExpertDispatch> dispatch)
    : core_(std::make_unique<Core>(weights, cpu, std::move(dispatch))) {}

DeepSeekV3Runner::~DeepSeekV3Runner() = default;

const ModelRunnerInfo& DeepSeekV3Runner::info() const { return core_->info; }

void DeepSeekV3Runner::BindKvPool(const KvPool* pool) {
  CHECK_EQ(pool->block_bytes(), core_->info.cache.block_bytes());
  core_->context.cache = {.pool = pool->blocks(),
                          .block_bytes = pool->block_bytes(),
                          .layer_offset_bytes = 0,
                          .latent_dim = core_->model.config.kv_lora_rank,
                          .rope_dim = core_->model.config.rope_dim,
                          .dtype = core_->options.cache_dtype};
}

absl::Status DeepSeekV3Runner::group_status() const {
  return core_->dispatch == nullptr ? absl::OkStatus()
                                    : core_->dispatch->status();
}

std::span<const ExpertSlots> DeepSeekV3Runner::SlotsOf(
    const ForwardBatch& batch) const {
  return batch.expert_slots.empty()
             ? std::span<const ExpertSlots>(core_->identity_slots)
             : batch.expert_slots;
}

void DeepSeekV3Runner::CheckBatch(const ForwardBatch& batch,
                                  const ForwardOutput& output) const {
  CHECK(core_->context.cache.pool != nullptr) << "no KV pool is bound";
  const auto num_rows = std::ssize(batch.token_ids);
  CHECK_LE(num_rows, core_->options.max_rows);
  CHECK_LE(std::ssize(batch.logits_rows), core_->options.max_logits_rows);
  CHECK_EQ(batch.positions.size(), batch.token_ids.size());
  CHECK_EQ(SlotsOf(batch).size(), core_->info.num_expert_layers)
      << "a group's step needs a placement";
  if (!output.expert_rows.empty()) {
    CHECK_EQ(output.expert_rows.size(), size_t{core_->info.num_expert_layers} *
                                            core_->info.slots_per_rank);
  }
  if (output.hidden.data == nullptr) return;
  CHECK_EQ(output.hidden.rows, num_rows);
  CHECK_EQ(output.hidden.cols, core_->model.config.hidden_size);
}

void DeepSeekV3Runner::Forward(const ForwardBatch& batch,
                               const ForwardOutput& output) {
  CheckBatch(batch, output);
  core_->context.expert_slots = SlotsOf(batch);
  baton::Forward(core_->context, batch, output);
}

void DeepSeekV3Runner::Draft(const ForwardBatch& batch,
                             MatrixView<const float> hidden,
                             const ForwardOutput& output) {
  CHECK(core_->info.has_drafter);
  CheckBatch(batch, output);
  CHECK_EQ(hidden.rows, std::ssize(batch.token_ids));
  CHECK_EQ(hidden.cols, core_->model.config.hidden_size);
  core_->context.expert_slots = SlotsOf(batch);
  baton::Draft(core_->context, batch, hidden, output);
}

}  // namespace baton
