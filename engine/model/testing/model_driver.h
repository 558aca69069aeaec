// Drives a ModelRunner without an engine: sequences over plain memory, steps by
// hand.
#ifndef BATON_ENGINE_MODEL_TESTING_MODEL_DRIVER_H_
#define BATON_ENGINE_MODEL_TESTING_MODEL_DRIVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/kv_pool.h"
#include "engine/model/deepseek_v3_runner.h"
#include "kernels/cpu_context.h"
#include "kernels/thread_pool.h"

namespace baton {

struct DriverOptions {
  LoadOptions load;
  VectorIsa isa = VectorIsa::kArray;
  int num_threads = 1;
  uint32_t num_blocks = 64;
};

// Thread-compatible.
class ModelDriver final {
 public:
  using Logits = std::vector<float>;

  // A sequence's next tokens within one step.
  struct Piece {
    int sequence = 0;
    std::span<const uint32_t> token_ids;
    int first_slot = 0;  // Where they lie; for Draft alone.
  };
  struct Output {
    std::vector<Logits> logits;
    std::vector<float> hidden;  // [rows, hidden_size]
  };

  static absl::StatusOr<std::unique_ptr<ModelDriver>> Create(
      const DriverOptions& options);

  const ModelRunnerInfo& info() const { return runner_->info(); }
  // [expert layers, experts]: of all calls so far.
  std::span<const uint32_t> expert_rows() const { return expert_rows_; }

  // A new sequence, without tokens, of a request with a prompt of so many. Its
  // blocks are taken from the pool in an order of their own and hold NaN at
  // first.
  int NewSequence(int prompt_tokens = 0);
  // Gives all blocks of all sequences back.
  void Reset();

  // One Forward over all pieces; the logits of every row.
  std::vector<Logits> Step(std::span<const Piece> pieces);
  // The same, for the logits of these rows alone.
  std::vector<Logits> Step(std::span<const Piece> pieces,
                           std::span<const int32_t> logits_rows);
  // The same, with the hidden states of every row.
  Output StepWithHidden(std::span<const Piece> pieces,
                        std::span<const int32_t> logits_rows);
  // One Draft over all pieces, with the state before each row.
  Output Draft(std::span<const Piece> pieces, std::span<const float> hidden,
               std::span<const int32_t> logits_rows);
  // The same for the logits of these rows, the hidden states not asked for.
  std::vector<Logits> DraftLogits(std::span<const Piece> pieces,
                                  std::span<const float> hidden,
                                  std::span<const int32_t> logits_rows);
  // The tokens of one sequence in chunks; the logits of every token.
  std::vector<Logits> Prefill(int sequence, std::span<const uint32_t> token_ids,
                              int chunk);

 private:
  struct Sequence {
    std::vector<uint32_t> block_table;
    int num_tokens = 0;
    int prompt_tokens = 0;
  };

  ModelDriver(const DriverOptions& options,
              std::unique_ptr<DeepSeekV3Runner> runner,
              std::unique_ptr<ThreadPool> threads);
  struct Batch {
    std::vector<uint32_t> token_ids;
    std::vector<int32_t> positions;
    std::vector<SequenceRows> sequences;
  };
  // Adds the piece's rows in slots from first_slot on, with blocks for them.
  void Place(const Piece& piece, int first_slot, Batch* batch);
  Batch Append(std::span<const Piece> pieces);
  // Forward, or Draft from `hidden`.
  Output Run(const Batch& batch, std::span<const int32_t> logits_rows,
             bool wants_hidden, std::optional<std::span<const float>> hidden);

  const DriverOptions options_;
  const std::unique_ptr<ThreadPool> threads_;
  const std::unique_ptr<DeepSeekV3Runner> runner_;
  std::vector<uint64_t> memory_;
  std::unique_ptr<KvPool> pool_;
  std::vector<uint32_t> free_blocks_;
  std::vector<Sequence> sequences_;
  std::vector<uint32_t> expert_rows_;
};

// The best token, ties to the lower id.
uint32_t Argmax(std::span<const float> logits);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TESTING_MODEL_DRIVER_H_
