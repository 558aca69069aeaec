// Which slot works on which choice of a rank's tokens, in the order of slots.
#ifndef BATON_COMM_SLOT_CHOICES_H_
#define BATON_COMM_SLOT_CHOICES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "comm/expert_dispatch.h"
#include "kernels/matrix_view.h"

namespace baton {

// Choice t * top_k + k is the k-th expert of token t. Slot s, of the group,
// works on choices[offsets[s] .. offsets[s + 1]), in their order.
struct SlotChoices {
  std::span<int32_t> offsets;  // [slots + 1]
  std::span<int32_t> choices;  // [max_tokens * top_k], of which as many as used
};

// A counting sort of the choices by slot. Allocates at construction alone.
// Thread-compatible.
class SlotChooser final {
 public:
  SlotChooser(const ExpertShape& shape, int num_slots);

  // Replicas as ExpertDispatch says.
  void Choose(MatrixView<const int32_t> experts, const ExpertSlots& slots,
              int rank, SlotChoices out);

 private:
  const int num_experts_;
  const int num_slots_;
  std::vector<uint32_t> turns_;       // [experts]
  std::vector<uint32_t> slot_of_;     // [choices]
  std::vector<int32_t> next_choice_;  // [slots]
};

}  // namespace baton

#endif  // BATON_COMM_SLOT_CHOICES_H_
