// The CUDA half's stand-in model, on the CPU.
#ifndef BATON_TESTS_FAKES_STAND_IN_MODEL_RUNNER_H_
#define BATON_TESTS_FAKES_STAND_IN_MODEL_RUNNER_H_

#include <cstdint>

#include "engine/model_runner.h"

namespace baton {

// Its logits leave one token alone possible, whatever the sampling parameters.
class StandInModelRunner final : public ModelRunner {
 public:
  StandInModelRunner(uint32_t vocab_size, uint32_t max_context_tokens);

  const ModelRunnerInfo& info() const override { return info_; }
  void BindKvPool(const KvPool* pool) override { pool_ = pool; }
  void Forward(const ForwardBatch& batch, const ForwardOutput& output) override;
  // Dies: it has no drafter.
  void Draft(const ForwardBatch& batch, MatrixView<const float> hidden,
             const ForwardOutput& output) override;

 private:
  uint64_t* Cached(const SequenceRows& sequence, int32_t position) const;

  ModelRunnerInfo info_;
  const KvPool* pool_ = nullptr;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_STAND_IN_MODEL_RUNNER_H_
