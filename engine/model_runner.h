// The model as the engine sees it.
#ifndef BATON_ENGINE_MODEL_RUNNER_H_
#define BATON_ENGINE_MODEL_RUNNER_H_

#include <cstdint>
#include <span>
#include <string>

#include "comm/kv_pool.h"
#include "engine/cache_spec.h"
#include "kernels/matrix_view.h"

namespace baton {

// Consecutive rows of one sequence in a batch.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  const uint32_t* block_table = nullptr;  // Covers every position of its rows.
};

// One step's input, on the device. Borrowed for the duration of Forward.
struct ForwardBatch {
  std::span<const uint32_t> token_ids;  // [rows]
  std::span<const int32_t>
      positions;  // [rows], absolute, ascending in a sequence
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logits_rows;  // Rows whose logits are wanted.
};

struct ModelRunnerInfo {
  uint32_t vocab_size = 0;
  uint32_t max_context_tokens = 0;
  CacheSpec cache;
  std::string fingerprint;
};

// Called on the device thread alone, one call at a time. The second
// implementation is tests/fakes/fake_model_runner.h.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const ModelRunnerInfo& info() const = 0;
  // Binds the cache; once, before the first Forward. The pool outlives the
  // runner.
  virtual void BindKvPool(const KvPool* pool) = 0;
  // Writes each row's KV, then logits[i] = logits of row logits_rows[i].
  // logits: [logits_rows.size(), vocab_size].
  // REQUIRES: rows and logits rows within the capacities given at construction.
  virtual void Forward(const ForwardBatch& batch, MatrixView<float> logits) = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_RUNNER_H_
