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
  std::unique_ptr<ExpertGroup> group(new ExpertGroup);
  ASSIGN_OR_RETURN(
      group->layout_,
      MakeExpertLayout(info.num_expert_layers, info.num_experts,
                       options.ep_size, options.num_redundant_experts));
  group->shape_ = {
      .experts = weights.expert_shape(),
      .num_ranks = static_cast<int>(options.ep_size),
      .slots_per_rank = static_cast<int>(group->layout_.slots_per_rank)};
  return group;
}

}  // namespace baton
