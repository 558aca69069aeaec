#include "engine/expert_placement.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/logging.h"

namespace baton {
namespace {

constexpr std::string_view kFlag = "num_redundant_experts";
constexpr uint32_t kMost = 65535;

}  // namespace

uint32_t DefaultRedundantExperts(uint32_t num_experts, uint32_t num_ranks) {
  CHECK_GE(num_experts, 1u);
  CHECK_GE(num_ranks, 1u);
  return (num_ranks - num_experts % num_ranks) % num_ranks;
}

absl::StatusOr<ExpertLayout> MakeExpertLayout(
    uint32_t num_layers, uint32_t num_experts, uint32_t num_ranks,
    std::optional<uint32_t> num_redundant_experts) {
  CHECK(num_experts >= 1 && num_experts <= kMost) << num_experts;
  CHECK(num_ranks >= 1 && num_ranks <= kMost) << num_ranks;
  const uint32_t least = DefaultRedundantExperts(num_experts, num_ranks);
  const uint64_t slots =
      uint64_t{num_experts} + num_redundant_experts.value_or(least);
  if (slots % num_ranks != 0) {
    return FieldError(
        kFlag, absl::StrCat(num_experts, " experts and ",
                            num_redundant_experts.value_or(least),
                            " copies do not divide by ", num_ranks,
                            " ranks; the fewest copies that do: ", least));
  }
  if (slots > uint64_t{num_experts} * num_ranks) {
    return FieldError(
        kFlag, absl::StrCat("with ", *num_redundant_experts, " copies of ",
                            num_experts, " experts, a rank of ", num_ranks,
                            " would hold one twice; at most ",
                            uint64_t{num_experts} * (num_ranks - 1)));
  }
  return ExpertLayout{
      .num_layers = num_layers,
      .num_experts = num_experts,
      .num_ranks = num_ranks,
      .slots_per_rank = static_cast<uint32_t>(slots) / num_ranks};
}

ExpertPlacement::ExpertPlacement(const ExpertLayout& layout)
    : layout_(layout),
      experts_(size_t{layout.num_layers} * layout.num_slots()),
      slots_(experts_.size()),
      first_(size_t{layout.num_layers} * (layout.num_experts + 1)) {
  CHECK_GE(layout.num_slots(), layout.num_experts);
  CHECK_LE(layout.slots_per_rank, layout.num_experts);
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    uint32_t* experts = &experts_[size_t{layer} * layout.num_slots()];
    for (uint32_t s = 0; s < layout.num_slots(); ++s) {
      experts[s] = s % layout.num_experts;
    }
    IndexLayer(layer);
  }
}

std::span<const uint32_t> ExpertPlacement::experts(uint32_t layer) const {
  CHECK_LT(layer, layout_.num_layers);
  const size_t slots = layout_.num_slots();
  return std::span<const uint32_t>(experts_).subspan(layer * slots, slots);
}

std::span<const uint32_t> ExpertPlacement::slots(uint32_t layer,
                                                 uint32_t expert) const {
  DCHECK(layer < layout_.num_layers && expert < layout_.num_experts);
  const uint32_t* first = &first_[size_t{layer} * (layout_.num_experts + 1)];
  return std::span<const uint32_t>(slots_).subspan(
      size_t{layer} * layout_.num_slots() + first[expert],
      first[expert + 1] - first[expert]);
}

ExpertSlots ExpertPlacement::view(uint32_t layer) const {
  const size_t slots = layout_.num_slots();
  const size_t starts = layout_.num_experts + 1;
  return {experts(layer),
          std::span<const uint32_t>(slots_).subspan(layer * slots, slots),
          std::span<const uint32_t>(first_).subspan(layer * starts, starts)};
}

uint32_t ExpertPlacement::ChooseSlot(uint32_t layer, uint32_t expert,
                                     uint32_t source_rank,
                                     uint32_t turn) const {
  const std::span<const uint32_t> replicas = slots(layer, expert);
  if (replicas.size() == 1) return replicas[0];
  return replicas[(uint64_t{source_rank} + turn) % replicas.size()];
}

absl::Status ExpertPlacement::SetLayer(uint32_t layer,
                                       std::span<const uint32_t> experts) {
  CHECK_LT(layer, layout_.num_layers);
  if (absl::Status status = CheckExperts(layout_, experts); !status.ok()) {
    return status;
  }
  std::copy(experts.begin(), experts.end(),
            experts_.begin() + size_t{layer} * layout_.num_slots());
  IndexLayer(layer);
  ++version_;
  return absl::OkStatus();
}

// A counting sort, so that an expert's slots ascend.
void ExpertPlacement::IndexLayer(uint32_t layer) {
  const std::span<const uint32_t> in_slot = experts(layer);
  uint32_t* slots = &slots_[size_t{layer} * layout_.num_slots()];
  uint32_t* first = &first_[size_t{layer} * (layout_.num_experts + 1)];
  std::fill(first, first + layout_.num_experts + 1, 0);
  for (const uint32_t e : in_slot) ++first[e + 1];
  for (uint32_t e = 0; e < layout_.num_experts; ++e) first[e + 1] += first[e];
  for (uint32_t s = 0; s < in_slot.size(); ++s) slots[first[in_slot[s]]++] = s;
  // Each start has moved to the next expert's.
  std::copy_backward(first, first + layout_.num_experts,
                     first + layout_.num_experts + 1);
  first[0] = 0;
}

absl::Status CheckExperts(const ExpertLayout& layout,
                          std::span<const uint32_t> experts) {
  if (experts.size() != layout.num_slots()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert placement: ", experts.size(), " slots, not ",
                     layout.num_slots()));
  }
  constexpr uint32_t kNowhere = UINT32_MAX;
  std::vector<uint32_t> last_rank(layout.num_experts, kNowhere);
  for (uint32_t s = 0; s < experts.size(); ++s) {
    if (experts[s] >= layout.num_experts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert placement: slot ", s, " has unknown expert ", experts[s]));
    }
    if (last_rank[experts[s]] == layout.rank_of(s)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expert placement: expert ", experts[s],
                       " twice on rank ", layout.rank_of(s)));
    }
    last_rank[experts[s]] = layout.rank_of(s);
  }
  const auto missing = std::find(last_rank.begin(), last_rank.end(), kNowhere);
  if (missing != last_rank.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert placement: no slot has expert ", missing - last_rank.begin()));
  }
  return absl::OkStatus();
}

std::vector<SlotMove> DiffLayer(const ExpertPlacement& from, uint32_t layer,
                                std::span<const uint32_t> to) {
  const ExpertLayout& layout = from.layout();
  CHECK_OK(CheckExperts(layout, to));
  const std::span<const uint32_t> now = from.experts(layer);
  std::vector<uint32_t> num_sent(layout.num_ranks);
  std::vector<SlotMove> moves;
  for (uint32_t s = 0; s < to.size(); ++s) {
    if (to[s] == now[s]) continue;
    const std::span<const uint32_t> holders = from.slots(layer, to[s]);
    const uint32_t rank = layout.rank_of(s);
    // By (another rank, sends so far); holders ascend, so ties go to the lower.
    const auto cost = [&](uint32_t slot) {
      const uint32_t holder = layout.rank_of(slot);
      return holder == rank ? 0 : 1 + num_sent[holder];
    };
    const uint32_t source = *std::min_element(
        holders.begin(), holders.end(),
        [&](uint32_t a, uint32_t b) { return cost(a) < cost(b); });
    if (layout.rank_of(source) != rank) ++num_sent[layout.rank_of(source)];
    moves.push_back({.slot = s, .expert = to[s], .source_slot = source});
  }
  return moves;
}

std::vector<uint32_t> ExpertsOfRanks(const ExpertPlacement& placement,
                                     uint32_t layer, uint32_t first_rank,
                                     uint32_t num_ranks) {
  const size_t per_rank = placement.layout().slots_per_rank;
  const std::span<const uint32_t> slots = placement.experts(layer).subspan(
      first_rank * per_rank, num_ranks * per_rank);
  std::vector<uint32_t> experts(slots.begin(), slots.end());
  std::sort(experts.begin(), experts.end());
  experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
  return experts;
}

std::vector<std::vector<uint32_t>> ExpertsOfRanks(
    const ExpertPlacement& placement, uint32_t first_rank, uint32_t num_ranks) {
  std::vector<std::vector<uint32_t>> all;
  for (uint32_t layer = 0; layer < placement.layout().num_layers; ++layer) {
    all.push_back(ExpertsOfRanks(placement, layer, first_rank, num_ranks));
  }
  return all;
}

}  // namespace baton
