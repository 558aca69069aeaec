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
//
// Its drafter writes into its own rows what the model will write, and guesses
// right as often as it is told to. A hidden state is the hash of its row: Draft
// dies when it is given another position's.
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
    bool drafter = false;
    // Rows of the prompt have other bytes than the same tokens' rows behind it.
    bool prompt_has_own_form = false;
    // How often a draft is right, if those before it are; of 256.
    uint32_t right_drafts = 200;
  };

  explicit FakeModelRunner(const Options& options);

  const ModelRunnerInfo& info() const override { return info_; }
  void BindKvPool(const KvPool* pool) override { pool_ = pool; }
  void Forward(const ForwardBatch& batch, const ForwardOutput& output) override;
  void Draft(const ForwardBatch& batch, MatrixView<const float> hidden,
             const ForwardOutput& output) override;

  // Rows computed so far, and calls of Forward.
  uint64_t num_rows() const { return num_rows_; }
  uint64_t num_steps() const { return num_steps_; }

 private:
  // Which of the rows at a position: the drafter has none at 0.
  enum class Group { kModel, kDrafter };

  void CheckBatch(const ForwardBatch& batch, const ForwardOutput& output) const;
  uint64_t* RowBytes(Group group, const SequenceRows& sequence,
                     int32_t position) const;
  uint64_t RowHash(Group group, const SequenceRows& sequence,
                   int32_t position) const;
  void WriteRow(Group group, const SequenceRows& sequence, int32_t position,
                uint32_t token);
  // Of all rows up to the position.
  uint64_t SequenceHash(Group group, const SequenceRows& sequence,
                        int32_t position) const;
  void WriteHidden(uint64_t row_hash, float* hidden) const;
  void CheckHidden(uint64_t row_hash, const float* hidden) const;
  void WriteLogits(uint64_t hash, float* logits) const;

  const Options options_;
  ModelRunnerInfo info_;
  const KvPool* pool_ = nullptr;
  uint64_t num_rows_ = 0;
  uint64_t num_steps_ = 0;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_FAKE_MODEL_RUNNER_H_
