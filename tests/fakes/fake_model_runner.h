// A model without weights whose tokens prove that the cache is right.
#ifndef BATON_TESTS_FAKES_FAKE_MODEL_RUNNER_H_
#define BATON_TESTS_FAKES_FAKE_MODEL_RUNNER_H_

#include <cstdint>
#include <optional>

#include "engine/model_runner.h"

namespace baton {

// Writes real bytes into the KV blocks: a row's bytes are a hash of its token,
// its position and the row before it, read back through the block table.
// Logits are a hash of all rows of the sequence, read back too. So a wrong,
// stale, torn or lost block is another token. Pure: the same ids give the same
// logits in any batch, chunk or pool. Dies when a row is out of the pool.
class FakeModelRunner final : public ModelRunner {
 public:
  struct Options {
    uint32_t vocab_size = 64;
    uint32_t max_context_tokens = 1024;
    size_t bytes_per_token = 64;  // A multiple of 8.
    // The logits behind this token are NaN.
    std::optional<uint32_t> poison_token = std::nullopt;
    // The rows of a step at most; dies beyond.
    int max_rows = 1 << 20;
    int max_logits_rows = 1 << 20;
  };

  explicit FakeModelRunner(const Options& options);

  const ModelRunnerInfo& info() const override { return info_; }
  void BindKvPool(const KvPool* pool) override { pool_ = pool; }
  void Forward(const ForwardBatch& batch, MatrixView<float> logits) override;

  // Rows computed so far, and calls of Forward.
  uint64_t num_rows() const { return num_rows_; }
  uint64_t num_steps() const { return num_steps_; }

 private:
  uint64_t* RowBytes(const SequenceRows& sequence, int32_t position) const;
  uint64_t RowHash(const SequenceRows& sequence, int32_t position) const;
  void WriteRow(const SequenceRows& sequence, int32_t position, uint32_t token);
  void WriteLogits(uint64_t hash, float* logits) const;

  const Options options_;
  ModelRunnerInfo info_;
  const KvPool* pool_ = nullptr;
  uint64_t num_rows_ = 0;
  uint64_t num_steps_ = 0;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_FAKE_MODEL_RUNNER_H_
