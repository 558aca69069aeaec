// The model as the engine sees it.
#ifndef BATON_ENGINE_MODEL_RUNNER_H_
#define BATON_ENGINE_MODEL_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "comm/expert_dispatch.h"
#include "comm/kv_pool.h"
#include "engine/cache_spec.h"
#include "kernels/matrix_view.h"

namespace baton {

// Consecutive rows of one sequence in a batch.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  const uint32_t* block_table = nullptr;  // Covers every position of its rows.
  // The request's original prompt length, however much of it is recomputed:
  // where a form of computing belongs to the prompt, rows at positions below
  // have it.
  int32_t prompt_tokens = 0;
};

// One step's input, on the device. Borrowed for the duration of Forward.
struct ForwardBatch {
  std::span<const uint32_t> token_ids;  // [rows]
  std::span<const int32_t>
      positions;  // [rows], absolute, ascending in a sequence
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logits_rows;  // Rows whose logits are wanted.
  // Of each layer with experts, the drafter's last. May be empty in a group of
  // one rank: each expert has the slot of its number.
  std::span<const ExpertSlots> expert_slots = {};
};

// Where results go. The runner writes what is there; rows as the caller asked.
struct ForwardOutput {
  MatrixView<float> logits;  // [logits rows, vocab_size]
  // [rows, hidden_size]: each row's state behind the final norm, which is what
  // the drafter starts from. No data: not wanted.
  MatrixView<float> hidden = {};
  // [expert layers, slots_per_rank]: the rows that each local slot got in this
  // call are added to what is here. Empty: not wanted.
  std::span<uint32_t> expert_rows = {};
};

struct ModelRunnerInfo {
  uint32_t vocab_size = 0;
  uint32_t max_context_tokens = 0;
  uint32_t hidden_size = 0;
  // True: Draft works, and the cache has the drafter's rows.
  bool has_drafter = false;
  // Of the states that a drafter goes on from.
  uint32_t drafter_hidden_size() const { return has_drafter ? hidden_size : 0; }
  // Logical experts of a layer, and layers that have them, the drafter's
  // included; 0 without.
  uint32_t num_experts = 0;
  uint32_t num_expert_layers = 0;
  // Of the group whose experts are shared. Where it is more than one, each rank
  // makes the same calls of Forward and Draft, without rows where it has none.
  uint32_t num_ranks = 1;
  // For experts, in each layer of each rank.
  uint32_t slots_per_rank = 0;
  // Slots whose rows a step counts, of all layers: in a group alone.
  size_t num_counted_slots() const {
    return num_ranks == 1 ? 0 : size_t{num_expert_layers} * slots_per_rank;
  }
  CacheSpec cache;
  std::string fingerprint;
  // Rows below the request's original prompt length are computed in another
  // form than the same tokens' rows behind it.
  bool prompt_has_own_form = false;
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
  // Writes each row's KV, then logits[i] = logits of row logits_rows[i], and
  // every row's hidden state.
  // REQUIRES: rows and logits rows within the capacities given at construction.
  virtual void Forward(const ForwardBatch& batch,
                       const ForwardOutput& output) = 0;
  // The drafter (multi-token prediction), one layer deep. Row r is the token at
  // positions[r] >= 1 with hidden[r] of the position before it: Forward's, or
  // for a chained draft Draft's own. Its KV goes to slot positions[r] of the
  // drafter's rows, and it attends to slots 1..positions[r] of them. logits[i]:
  // of the token behind row logits_rows[i].
  // hidden: [rows, hidden_size]. REQUIRES: info().has_drafter.
  virtual void Draft(const ForwardBatch& batch, MatrixView<const float> hidden,
                     const ForwardOutput& output) = 0;
  // Not OK: the group has ended while a call waited for its other ranks. What
  // that call wrote, and all later ones write, is worth nothing. Thread-safe.
  virtual absl::Status group_status() const { return absl::OkStatus(); }
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_RUNNER_H_
