#include "server/expert_group.h"

#include <utility>

#include "base/field_error.h"
#include "base/status_macros.h"

namespace baton {

absl::StatusOr<std::unique_ptr<const ExpertGroup>> ExpertGroup::Create(
    const ExpertGroupOptions& options, const LoadedDeepSeekV3& weights) {
  const ModelRunnerInfo& info = weights.info();
  if (info.num_experts == 0) {
    return FieldError("ep_size", "the model has no experts to share out");
  }
  ASSIGN_OR_RETURN(
      const ExpertLayout layout,
      MakeExpertLayout(info.num_expert_layers, info.num_experts,
                       options.ep_size, options.num_redundant_experts));
  const ExpertPlacement placement(layout);
  std::unique_ptr<ExpertGroup> group(new ExpertGroup);
  group->tables_.reserve(layout.num_layers);
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    const std::span<const uint32_t> experts = placement.experts(layer);
    group->tables_.emplace_back(
        static_cast<int>(layout.num_experts),
        std::vector<uint32_t>(experts.begin(), experts.end()));
    group->slots_.push_back(group->tables_.back().view());
  }
  group->shape_ = {.experts = weights.expert_shape(),
                   .num_ranks = static_cast<int>(options.ep_size),
                   .slots_per_rank = static_cast<int>(layout.slots_per_rank)};
  return group;
}

}  // namespace baton
