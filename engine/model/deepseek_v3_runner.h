// A DeepSeek-V2 or V3 model folder as the engine's ModelRunner, on the CPU.
#ifndef BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_
#define BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/expert_dispatch.h"
#include "engine/model/numerics.h"
#include "engine/model/weight_storage.h"
#include "engine/model_runner.h"
#include "kernels/cpu_context.h"
#include "kernels/latent_attention.h"

namespace baton {

struct LoadOptions {
  std::string folder;  // config.json and safetensors.
  WeightStorage weights = WeightStorage::kAsStored;
  CacheDtype cache_dtype = CacheDtype::kBf16;
  Numerics numerics = Numerics::kExact;
  int max_rows = 512;          // Of one Forward or Draft, 1 to 65536.
  int max_logits_rows = 64;    // Of one Forward or Draft, 1 to max_rows.
  int max_context_tokens = 0;  // 0: the model's own; more is refused.
  bool drafter = false;  // Load the first MTP layer; refused if there is none.
};

// A folder's weights, read and packed once for all ranks of a process.
// Immutable, so thread-safe.
class LoadedDeepSeekV3 final {
 public:
  // What Load would refuse, found without reading a weight.
  static absl::Status Check(const LoadOptions& options);
  // The folder is not needed afterwards. `cpu`: for packing.
  static absl::StatusOr<std::unique_ptr<const LoadedDeepSeekV3>> Load(
      const LoadOptions& options, const CpuContext& cpu);
  ~LoadedDeepSeekV3();

  // Of a group of one.
  const ModelRunnerInfo& info() const;
  // What a rank's dispatch must be made for. REQUIRES: info().num_experts > 0.
  ExpertShape expert_shape() const;

 private:
  friend class DeepSeekV3Runner;
  struct Content;
  explicit LoadedDeepSeekV3(std::unique_ptr<const Content> content);

  const std::unique_ptr<const Content> content_;
};

// Thread rule: ModelRunner's. Everything it needs is allocated at construction.
class DeepSeekV3Runner final : public ModelRunner {
 public:
  // A rank by itself, which owns its weights.
  static absl::StatusOr<std::unique_ptr<DeepSeekV3Runner>> Load(
      const LoadOptions& options, const CpuContext& cpu);
  // `cpu` borrows its thread pool; that and the weights outlive the runner.
  // dispatch: of this rank in its group; null where it is alone.
  DeepSeekV3Runner(const LoadedDeepSeekV3* weights, const CpuContext& cpu,
                   std::unique_ptr<ExpertDispatch> dispatch);
  ~DeepSeekV3Runner() override;

  const ModelRunnerInfo& info() const override;
  void BindKvPool(const KvPool* pool) override;
  void Forward(const ForwardBatch& batch, const ForwardOutput& output) override;
  void Draft(const ForwardBatch& batch, MatrixView<const float> hidden,
             const ForwardOutput& output) override;
  absl::Status group_status() const override;

 private:
  struct Core;
  std::span<const ExpertSlots> SlotsOf(const ForwardBatch& batch) const;
  void CheckBatch(const ForwardBatch& batch, const ForwardOutput& output) const;

  std::unique_ptr<const LoadedDeepSeekV3> owned_;  // By Load() alone.
  const std::unique_ptr<Core> core_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_
