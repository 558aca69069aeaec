#include "engine/model/deepseek_v3_runner.h"

#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/local_expert_dispatch.h"
#include "engine/model/deepseek_v3.h"
#include "engine/model/deepseek_v3_weights.h"
#include "engine/model/fingerprint.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor_check.h"

namespace baton {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxRows = 1 << 16;

absl::Status CheckRange(const char* name, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value, ", but must be from ", min, " to ", max));
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
  return CheckRange("max_context_tokens", options.max_context_tokens, 0,
                    config.max_position);
}

ModelParts PartsOf(const LoadOptions& options) {
  return options.drafter ? ModelParts::kMainAndDrafter : ModelParts::kMain;
}

struct ModelFolder {
  std::string config_text;
  ModelConfig config;
  ModelTensors tensors;  // Not checked against `config`.
};

absl::StatusOr<ModelFolder> OpenFolder(const LoadOptions& options) {
  const std::string path = absl::StrCat(options.folder, "/config.json");
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(text, path));
  RETURN_IF_ERROR(CheckOptions(options, config, path));
  ASSIGN_OR_RETURN(ModelTensors tensors, ModelTensors::Open(options.folder));
  return ModelFolder{std::move(text), config, std::move(tensors)};
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
  return info;
}

// Null without routed experts.
std::unique_ptr<ExpertDispatch> MakeDispatch(const ModelConfig& config,
                                             int max_rows) {
  if (!config.experts.has_value()) return nullptr;
  return std::make_unique<LocalExpertDispatch>(
      LocalExpertDispatch::Options{.num_experts = config.experts->num_routed,
                                   .top_k = config.experts->routing.top_k,
                                   .hidden_size = config.hidden_size,
                                   .max_tokens = max_rows});
}

}  // namespace

static_assert(CacheSpec::kBlockTokens == kKvBlockTokens);

struct DeepSeekV3Runner::Core {
  const CpuContext cpu;
  const LoadOptions options;
  const DeepSeekV3Model model;
  const ModelRunnerInfo info;
  const std::unique_ptr<ExpertDispatch> dispatch;
  DeepSeekV3Workspace workspace;
  ForwardContext context;
};

absl::Status DeepSeekV3Runner::Check(const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ModelFolder folder, OpenFolder(options));
  return CheckTensors(folder.config, folder.tensors, options.weights,
                      PartsOf(options));
}

absl::StatusOr<std::unique_ptr<DeepSeekV3Runner>> DeepSeekV3Runner::Load(
    const LoadOptions& options, const CpuContext& cpu) {
  ASSIGN_OR_RETURN(const ModelFolder folder, OpenFolder(options));
  const auto& [config_text, config, tensors] = folder;
  const ModelParts parts = PartsOf(options);
  ASSIGN_OR_RETURN(DeepSeekV3Weights weights,
                   LoadDeepSeekV3Weights(config, tensors,
                                         {.storage = options.weights,
                                          .parts = parts,
                                          .numerics = options.numerics},
                                         cpu));
  ModelRunnerInfo info = MakeInfo(config, options);
  info.fingerprint = ModelFingerprint(
      config_text, tensors,
      {options.cache_dtype, options.drafter, options.numerics});
  DeepSeekV3Model model = MakeModel(config, std::move(weights),
                                    static_cast<int>(info.max_context_tokens));
  return std::unique_ptr<DeepSeekV3Runner>(
      new DeepSeekV3Runner(std::unique_ptr<Core>(new Core{
          .cpu = {.isa = cpu.isa,
                  .threads = cpu.threads,
                  .bf16_dots = options.numerics == Numerics::kFastBf16
                                   ? Bf16Dots::kOn
                                   : cpu.bf16_dots},
          .options = options,
          .model = std::move(model),
          .info = std::move(info),
          .dispatch = MakeDispatch(config, options.max_rows),
          .workspace = DeepSeekV3Workspace(config, options.max_rows,
                                           options.max_logits_rows, parts),
          .context = {}})));
}

DeepSeekV3Runner::DeepSeekV3Runner(std::unique_ptr<Core> core)
    : core_(std::move(core)) {
  core_->context = {.cpu = &core_->cpu,
                    .model = &core_->model,
                    .dispatch = core_->dispatch.get(),
                    .workspace = &core_->workspace,
                    .cache = {}};
}

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

void DeepSeekV3Runner::CheckBatch(const ForwardBatch& batch,
                                  const ForwardOutput& output) const {
  CHECK(core_->context.cache.pool != nullptr) << "no KV pool is bound";
  const auto num_rows = std::ssize(batch.token_ids);
  CHECK_LE(num_rows, core_->options.max_rows);
  CHECK_LE(std::ssize(batch.logits_rows), core_->options.max_logits_rows);
  CHECK_EQ(batch.positions.size(), batch.token_ids.size());
  if (output.hidden.data == nullptr) return;
  CHECK_EQ(output.hidden.rows, num_rows);
  CHECK_EQ(output.hidden.cols, core_->model.config.hidden_size);
}

void DeepSeekV3Runner::Forward(const ForwardBatch& batch,
                               const ForwardOutput& output) {
  CheckBatch(batch, output);
  baton::Forward(core_->context, batch, output);
}

void DeepSeekV3Runner::Draft(const ForwardBatch& batch,
                             MatrixView<const float> hidden,
                             const ForwardOutput& output) {
  CHECK(core_->info.has_drafter);
  CheckBatch(batch, output);
  CHECK_EQ(hidden.rows, std::ssize(batch.token_ids));
  CHECK_EQ(hidden.cols, core_->model.config.hidden_size);
  baton::Draft(core_->context, batch, hidden, output);
}

}  // namespace baton
