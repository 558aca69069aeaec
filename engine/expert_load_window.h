// How many tokens each expert got, step by step, over the newest steps.
#ifndef BATON_ENGINE_EXPERT_LOAD_WINDOW_H_
#define BATON_ENGINE_EXPERT_LOAD_WINDOW_H_

#include <cstdint>
#include <span>
#include <vector>

namespace baton {

// One layer's rows, oldest first. A view; valid until the window changes.
class ExpertLoads final {
 public:
  // `counts` [num_rows, num_experts], the oldest row at `first_row`, behind the
  // last the first. REQUIRES: first_row < num_rows, or both 0.
  ExpertLoads(std::span<const uint32_t> counts, uint32_t num_experts,
              uint32_t first_row = 0);

  uint32_t num_rows() const { return num_rows_; }
  uint32_t num_experts() const { return num_experts_; }
  std::span<const uint32_t> row(uint32_t row) const;

 private:
  std::span<const uint32_t> counts_;
  uint32_t num_experts_;
  uint32_t num_rows_;
  uint32_t first_row_;
};

struct ExpertLoadWindowOptions {
  uint32_t num_layers = 0;
  uint32_t num_experts = 0;
  uint32_t num_steps = 1000;
  // Steps that share a row of counts: with 16, 58 layers of 256 experts and
  // 1,000 steps take 3.7 MB, and what ranks exchange before a plan is that
  // small too. 1 keeps each step.
  uint32_t steps_per_row = 16;
};

// A ring of rows, of the steps [newest - num_steps, newest] or up to a row
// more; a row's counts are the sum over its steps. Its memory is all taken at
// construction, and so is every row's: adding never allocates. Owned by who
// counts; thread-compatible.
class ExpertLoadWindow final {
 public:
  // REQUIRES: all of the options positive.
  explicit ExpertLoadWindow(const ExpertLoadWindowOptions& options);

  // Of the step that is open: the logical experts of its tokens, in any order.
  // REQUIRES: each in [0, num_experts).
  void AddTokens(uint32_t layer, std::span<const int32_t> experts);
  // The same, counted already. [num_experts]
  void AddCounts(uint32_t layer, std::span<const uint32_t> counts);
  // The same by slot: counts[i] tokens of expert experts[i].
  void AddSlots(uint32_t layer, std::span<const uint32_t> experts,
                std::span<const uint32_t> counts);
  // Closes the step, which may have had no tokens; the next is open.
  void EndStep();

  // Adds another rank's counts of the same steps. REQUIRES: same options, as
  // many steps ended.
  void Merge(const ExpertLoadWindow& other);
  // Forgets every step: a new epoch's first step is open.
  void Clear();

  // The rows that hold a closed step, the open step's counts included.
  ExpertLoads Loads(uint32_t layer) const;
  // Of closed steps in Loads().
  uint64_t num_steps() const;
  bool full() const { return num_steps() >= options_.num_steps; }
  size_t memory_bytes() const { return counts_.size() * sizeof(uint32_t); }

 private:
  uint32_t open_row() const;
  std::span<uint32_t> Cells(uint32_t layer, uint32_t row);

  const ExpertLoadWindowOptions options_;
  const uint32_t num_rows_;
  uint64_t ended_steps_ = 0;
  std::vector<uint32_t> counts_;  // [layers, rows, experts]
};

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_LOAD_WINDOW_H_
