#include "engine/expert_load_window.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {

ExpertLoads::ExpertLoads(std::span<const uint32_t> counts, uint32_t num_experts,
                         uint32_t first_row)
    : counts_(counts),
      num_experts_(num_experts),
      num_rows_(static_cast<uint32_t>(counts.size() / num_experts)),
      first_row_(first_row) {
  CHECK_EQ(size_t{num_rows_} * num_experts, counts.size());
  CHECK(first_row < num_rows_ || first_row == 0) << first_row;
}

std::span<const uint32_t> ExpertLoads::row(uint32_t row) const {
  DCHECK(row < num_rows_);
  uint32_t index = first_row_ + row;
  if (index >= num_rows_) index -= num_rows_;
  return counts_.subspan(size_t{index} * num_experts_, num_experts_);
}

ExpertLoadWindow::ExpertLoadWindow(const ExpertLoadWindowOptions& options)
    : options_(options),
      // One more, for the row that the newest steps fill.
      num_rows_((options.num_steps + options.steps_per_row - 1) /
                    options.steps_per_row +
                1),
      counts_(size_t{options.num_layers} * num_rows_ * options.num_experts) {
  CHECK_GE(options.num_layers, 1u);
  CHECK_GE(options.num_experts, 1u);
  CHECK_GE(options.num_steps, 1u);
  CHECK_GE(options.steps_per_row, 1u);
}

void ExpertLoadWindow::AddTokens(uint32_t layer,
                                 std::span<const int32_t> experts) {
  uint32_t* cells = Cells(layer, open_row()).data();
  for (const int32_t e : experts) {
    DCHECK(e >= 0 && static_cast<uint32_t>(e) < options_.num_experts);
    ++cells[e];
  }
}

void ExpertLoadWindow::AddCounts(uint32_t layer,
                                 std::span<const uint32_t> counts) {
  CHECK_EQ(counts.size(), options_.num_experts);
  uint32_t* cells = Cells(layer, open_row()).data();
  for (size_t e = 0; e < counts.size(); ++e) cells[e] += counts[e];
}

void ExpertLoadWindow::AddSlots(uint32_t layer,
                                std::span<const uint32_t> experts,
                                std::span<const uint32_t> counts) {
  CHECK_EQ(experts.size(), counts.size());
  uint32_t* cells = Cells(layer, open_row()).data();
  for (size_t i = 0; i < experts.size(); ++i) {
    DCHECK(experts[i] < options_.num_experts);
    cells[experts[i]] += counts[i];
  }
}

void ExpertLoadWindow::EndStep() {
  ++ended_steps_;
  if (ended_steps_ % options_.steps_per_row != 0) return;
  for (uint32_t layer = 0; layer < options_.num_layers; ++layer) {
    const std::span<uint32_t> oldest = Cells(layer, open_row());
    std::fill(oldest.begin(), oldest.end(), 0);
  }
}

void ExpertLoadWindow::Merge(const ExpertLoadWindow& other) {
  CHECK_EQ(counts_.size(), other.counts_.size());
  CHECK_EQ(options_.steps_per_row, other.options_.steps_per_row);
  CHECK_EQ(ended_steps_, other.ended_steps_);
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
}

void ExpertLoadWindow::Clear() {
  ended_steps_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0);
}

// Rows lie in the ring as in time until the ring is full; then the open row is
// the newest, and the one behind it the oldest. A row just opened holds no
// closed step, but its zeros do no harm.
ExpertLoads ExpertLoadWindow::Loads(uint32_t layer) const {
  CHECK_LT(layer, options_.num_layers);
  const size_t row_size = options_.num_experts;
  const std::span<const uint32_t> ring =
      std::span<const uint32_t>(counts_).subspan(layer * num_rows_ * row_size,
                                                 num_rows_ * row_size);
  const uint64_t newest = ended_steps_ / options_.steps_per_row;
  if (newest < num_rows_) {
    const uint64_t rows =
        newest + (ended_steps_ % options_.steps_per_row != 0 ? 1 : 0);
    return ExpertLoads(ring.first(rows * row_size), options_.num_experts);
  }
  return ExpertLoads(ring, options_.num_experts, (open_row() + 1) % num_rows_);
}

uint64_t ExpertLoadWindow::num_steps() const {
  const uint64_t open = ended_steps_ % options_.steps_per_row;
  const uint64_t closed_rows =
      std::min<uint64_t>(ended_steps_ / options_.steps_per_row, num_rows_ - 1);
  return closed_rows * options_.steps_per_row + open;
}

uint32_t ExpertLoadWindow::open_row() const {
  return ended_steps_ / options_.steps_per_row % num_rows_;
}

std::span<uint32_t> ExpertLoadWindow::Cells(uint32_t layer, uint32_t row) {
  CHECK_LT(layer, options_.num_layers);
  return std::span<uint32_t>(counts_).subspan(
      (size_t{layer} * num_rows_ + row) * options_.num_experts,
      options_.num_experts);
}

}  // namespace baton
