// A DeepSeek-V2 or V3 model folder as the engine's ModelRunner, on the CPU.
#ifndef BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_
#define BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
  // The routed experts to hold at first, ascending, of each layer that has
  // experts, the drafter's last. Empty: all, for good.
  std::vector<std::vector<uint32_t>> resident_experts = {};
};

// A folder's weights, read and packed once for all ranks of a process.
// Thread-safe; but one thread at a time adds and removes experts, while others
// run forwards.
//
// With resident_experts it holds these experts alone, and whichever are added,
// and keeps the folder's files open to read them from: nobody may write to the
// files meanwhile, though they may be removed or replaced. A forward dies where
// a slot of its rank has an expert that is not here.
class LoadedDeepSeekV3 final {
 public:
  // What Load would refuse, found without reading a weight.
  static absl::Status Check(const LoadOptions& options);
  // info() but for the fingerprint, from config.json alone: what to choose
  // resident_experts by.
  static absl::StatusOr<ModelRunnerInfo> ReadInfo(const LoadOptions& options);
  // Without resident_experts, the folder is not needed afterwards. `cpu`: for
  // packing.
  static absl::StatusOr<std::unique_ptr<LoadedDeepSeekV3>> Load(
      const LoadOptions& options, const CpuContext& cpu);
  ~LoadedDeepSeekV3();

  // Of a group of one.
  const ModelRunnerInfo& info() const;
  // What a rank's dispatch must be made for. REQUIRES: info().num_experts > 0.
  ExpertShape expert_shape() const;

  // Any thread. REQUIRES, as the two below: there are such a layer and expert.
  bool HasExpert(uint32_t expert_layer, uint32_t expert) const;
  // Reads and packs it, on this thread alone, to the very bits that Load gives;
  // steps that are launched afterwards may have slots with it. Nothing to do
  // where it is here. An error names the file: DATA_LOSS where it has changed
  // or cannot be read, INVALID_ARGUMENT for a value that is not finite.
  // REQUIRES: loaded with resident_experts.
  absl::Status AddExpert(uint32_t expert_layer, uint32_t expert);
  // Gives its memory back. REQUIRES: loaded with resident_experts, it is here,
  // and no slot of a step in flight or of a later one has it.
  void RemoveExpert(uint32_t expert_layer, uint32_t expert);
  // What an expert takes in memory; of the largest, if they differ.
  size_t expert_bytes() const;

 private:
  friend class DeepSeekV3Runner;
  struct Content;
  explicit LoadedDeepSeekV3(std::unique_ptr<Content> content);

  const std::unique_ptr<Content> content_;
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
