// A DeepSeek-V2 or V3 model folder as the engine's ModelRunner, on the CPU.
#ifndef BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_
#define BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Thread rule: ModelRunner's. Everything it needs is allocated by Load.
class DeepSeekV3Runner final : public ModelRunner {
 public:
  // What Load would refuse, found without reading a weight.
  static absl::Status Check(const LoadOptions& options);
  // Reads and packs the weights; the folder is not needed afterwards. `cpu`
  // borrows its thread pool, which must outlive the runner.
  static absl::StatusOr<std::unique_ptr<DeepSeekV3Runner>> Load(
      const LoadOptions& options, const CpuContext& cpu);
  ~DeepSeekV3Runner() override;

  const ModelRunnerInfo& info() const override;
  void BindKvPool(const KvPool* pool) override;
  void Forward(const ForwardBatch& batch, const ForwardOutput& output) override;
  void Draft(const ForwardBatch& batch, MatrixView<const float> hidden,
             const ForwardOutput& output) override;

 private:
  struct Core;
  explicit DeepSeekV3Runner(std::unique_ptr<Core> core);
  void CheckBatch(const ForwardBatch& batch, const ForwardOutput& output) const;

  const std::unique_ptr<Core> core_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_DEEPSEEK_V3_RUNNER_H_
