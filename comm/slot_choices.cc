#include "comm/slot_choices.h"

#include <algorithm>
#include <cstddef>

#include "base/logging.h"

namespace baton {

SlotChooser::SlotChooser(const ExpertShape& shape, int num_slots)
    : num_experts_(shape.num_experts), num_slots_(num_slots) {
  turns_.resize(static_cast<size_t>(num_experts_));
  slot_of_.resize(static_cast<size_t>(shape.max_tokens) * shape.top_k);
  next_choice_.resize(static_cast<size_t>(num_slots_));
}

void SlotChooser::Choose(MatrixView<const int32_t> experts,
                         const ExpertSlots& slots, int rank, SlotChoices out) {
  CHECK_EQ(static_cast<int>(slots.first.size()), num_experts_ + 1);
  CHECK_EQ(static_cast<int>(slots.slots.size()), num_slots_);
  std::ranges::fill(turns_, static_cast<uint32_t>(rank));
  std::ranges::fill(out.offsets, 0);
  size_t choice = 0;
  for (int t = 0; t < experts.rows; ++t) {
    for (int k = 0; k < experts.cols; ++k, ++choice) {
      const auto expert = static_cast<uint32_t>(experts.row(t)[k]);
      const uint32_t first = slots.first[expert];
      const uint32_t replicas = slots.first[expert + 1] - first;
      const uint32_t turn = replicas == 1 ? 0 : turns_[expert]++ % replicas;
      const uint32_t slot = slots.slots[first + turn];
      slot_of_[choice] = slot;
      ++out.offsets[slot + 1];
    }
  }
  for (int s = 0; s < num_slots_; ++s) {
    next_choice_[s] = out.offsets[s];
    out.offsets[s + 1] += out.offsets[s];
  }
  for (size_t i = 0; i < choice; ++i) {
    out.choices[next_choice_[slot_of_[i]]++] = static_cast<int32_t>(i);
  }
}

}  // namespace baton
