#include "engine/model/deepseek_v3_runner.h"

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
  const DeepSeekV3Model model;
  const ModelRunnerInfo info;
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
  ASSIGN_OR_RETURN(const ModelFolder folder, OpenFolder(options));
  return CheckTensors(folder.config, folder.tensors, options.weights,
                      PartsOf(options));
}

absl::StatusOr<std::unique_ptr<const LoadedDeepSeekV3>> LoadedDeepSeekV3::Load(
    const LoadOptions& options, const CpuContext& cpu) {
  ASSIGN_OR_RETURN(const ModelFolder folder, OpenFolder(options));
  const auto& [config_text, config, tensors] = folder;
  ASSIGN_OR_RETURN(DeepSeekV3Weights weights,
                   LoadDeepSeekV3Weights(config, tensors,
                                         {.storage = options.weights,
                                          .parts = PartsOf(options),
                                          .numerics = options.numerics},
                                         cpu));
  ModelRunnerInfo info = MakeInfo(config, options);
  info.num_expert_layers = static_cast<uint32_t>(NumExpertLayers(weights));
  if (info.num_expert_layers > 0) info.num_experts = config.experts->num_routed;
  info.slots_per_rank = info.num_experts;
  info.fingerprint = ModelFingerprint(
      config_text, tensors,
      {options.cache_dtype, options.drafter, options.numerics});
  DeepSeekV3Model model = MakeModel(config, std::move(weights),
                                    static_cast<int>(info.max_context_tokens));
  return std::unique_ptr<const LoadedDeepSeekV3>(
      new LoadedDeepSeekV3(std::unique_ptr<const Content>(
          new Content{options, std::move(model), std::move(info)})));
}

LoadedDeepSeekV3::LoadedDeepSeekV3(std::unique_ptr<const Content> content)
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
