#include "comm/slot_table.h"

#include <cstddef>
#include <numeric>
#include <utility>

#include "base/logging.h"

namespace baton {

SlotTable::SlotTable(int num_experts, std::vector<uint32_t> experts)
    : experts_(std::move(experts)),
      slots_(experts_.size()),
      first_(static_cast<size_t>(num_experts) + 1) {
  for (const uint32_t expert : experts_) ++first_.at(expert + 1);
  for (int e = 0; e < num_experts; ++e) {
    CHECK_GT(first_[e + 1], 0u) << "expert " << e << " has no slot";
    first_[e + 1] += first_[e];
  }
  std::vector<uint32_t> next(first_);
  for (size_t s = 0; s < experts_.size(); ++s) {
    slots_[next[experts_[s]]++] = static_cast<uint32_t>(s);
  }
}

SlotTable SlotTable::Identity(int num_experts) {
  std::vector<uint32_t> experts(static_cast<size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), 0u);
  return {num_experts, std::move(experts)};
}

}  // namespace baton
