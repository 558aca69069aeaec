// The experts of a group: how many slots there are, and what each one holds.
#ifndef BATON_SERVER_EXPERT_GROUP_H_
#define BATON_SERVER_EXPERT_GROUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/expert_boards.h"
#include "comm/expert_dispatch.h"
#include "comm/slot_table.h"
#include "engine/expert_placement.h"
#include "engine/model/deepseek_v3_runner.h"

namespace baton {

struct ExpertGroupOptions {
  uint32_t ep_size = 1;
  std::optional<uint32_t> num_redundant_experts;
};

// Immutable, so thread-safe.
class ExpertGroup {
 public:
  // An error names a flag. Borrows nothing.
  static absl::StatusOr<std::unique_ptr<const ExpertGroup>> Create(
      const ExpertGroupOptions& options, const LoadedDeepSeekV3& weights);

  const ExpertLayout& layout() const { return layout_; }
  const ExpertGroupShape& shape() const { return shape_; }

 private:
  ExpertGroup() = default;

  ExpertLayout layout_;
  ExpertGroupShape shape_;
};

}  // namespace baton

#endif  // BATON_SERVER_EXPERT_GROUP_H_
