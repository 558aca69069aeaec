// Which rank holds which expert: physical slots, logical experts, replicas.
//
// The slots of a layer are numbered over the group, rank by rank: rank r has
// slots [r * slots_per_rank, (r + 1) * slots_per_rank). Each slot holds the
// weights of one logical expert, each expert has a slot or more, and no rank
// holds an expert twice.
#ifndef BATON_ENGINE_EXPERT_PLACEMENT_H_
#define BATON_ENGINE_EXPERT_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/expert_dispatch.h"

namespace baton {

struct ExpertLayout {
  uint32_t num_layers = 0;
  uint32_t num_experts = 0;  // Logical, a layer.
  uint32_t num_ranks = 1;
  uint32_t slots_per_rank = 0;

  uint32_t num_slots() const { return num_ranks * slots_per_rank; }
  uint32_t rank_of(uint32_t slot) const { return slot / slots_per_rank; }
  friend bool operator==(const ExpertLayout&, const ExpertLayout&) = default;
};

// The fewest copies with which slots divide by ranks: 0 where the experts do;
// with fewer experts than ranks, one slot a rank. REQUIRES: both positive.
uint32_t DefaultRedundantExperts(uint32_t num_experts, uint32_t num_ranks);

// `num_redundant_experts`: copies beyond one slot an expert, the default where
// not given. Errors name that flag: slots that do not divide by the ranks, or
// more slots on a rank than there are experts.
// REQUIRES: num_experts and num_ranks in [1, 65535].
absl::StatusOr<ExpertLayout> MakeExpertLayout(
    uint32_t num_layers, uint32_t num_experts, uint32_t num_ranks,
    std::optional<uint32_t> num_redundant_experts);

// A value; thread-compatible. Tables are contiguous, for a device to copy.
class ExpertPlacement final {
 public:
  // Version 0 of every group: in each layer the logical experts in order, then
  // copies from the front.
  explicit ExpertPlacement(const ExpertLayout& layout);

  const ExpertLayout& layout() const { return layout_; }
  // Counts the layers that were set: ranks that set the same layers in the
  // same order have the same placement at the same version.
  uint64_t version() const { return version_; }

  // The expert in each slot. [num_slots]
  std::span<const uint32_t> experts(uint32_t layer) const;
  // The slots of an expert, ascending; at least one.
  std::span<const uint32_t> slots(uint32_t layer, uint32_t expert) const;
  // Both as a dispatch takes them. They change with SetLayer: steps in flight
  // need a placement of their own.
  ExpertSlots view(uint32_t layer) const;

  // The slot for one row of a source rank: replicas in turn. `turn` counts the
  // rows that the source sends to this expert in this step, so each source
  // loads its replicas evenly to one row; the source's number staggers who
  // gets the odd one. (The row's own number as turn works too, but then chance
  // decides which replica has how many.)
  uint32_t ChooseSlot(uint32_t layer, uint32_t expert, uint32_t source_rank,
                      uint32_t turn) const;

  // Gives a layer new experts, slot by slot, and counts up the version.
  // INVALID_ARGUMENT, and nothing changed: wrong length, an unknown expert, one
  // without a slot, one twice on a rank.
  absl::Status SetLayer(uint32_t layer, std::span<const uint32_t> experts);

 private:
  void IndexLayer(uint32_t layer);

  ExpertLayout layout_;
  uint64_t version_ = 0;
  std::vector<uint32_t> experts_;  // [layers, slots]
  // An expert's slots: slots_[layer, first_[layer, e] .. first_[layer, e + 1]).
  std::vector<uint32_t> slots_;  // [layers, slots]
  std::vector<uint32_t> first_;  // [layers, experts + 1]
};

// OK if the experts may be a layer's: what SetLayer asks.
absl::Status CheckExperts(const ExpertLayout& layout,
                          std::span<const uint32_t> experts);

// A layer's experts in the slots of the ranks
// [first_rank, first_rank + num_ranks); ascending, each once.
std::vector<uint32_t> ExpertsOfRanks(const ExpertPlacement& placement,
                                     uint32_t layer, uint32_t first_rank,
                                     uint32_t num_ranks);
// Of each layer.
std::vector<std::vector<uint32_t>> ExpertsOfRanks(
    const ExpertPlacement& placement, uint32_t first_rank, uint32_t num_ranks);

// A slot that changes, and where the weights of its new expert are now.
struct SlotMove {
  uint32_t slot = 0;
  uint32_t expert = 0;
  uint32_t source_slot = 0;  // Of the same rank where it has one.

  friend bool operator==(const SlotMove&, const SlotMove&) = default;
};

// What one layer's move from `from` to `to` takes, in order of slots. Of the
// ranks that hold an expert, the one that has sent least so far sends it, of
// equals the lower. REQUIRES: `to` may be a layer's.
std::vector<SlotMove> DiffLayer(const ExpertPlacement& from, uint32_t layer,
                                std::span<const uint32_t> to);

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_PLACEMENT_H_
