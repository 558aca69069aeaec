// The experts of a process's ranks: where each one is, and how rows get there.
#ifndef BATON_SERVER_EXPERT_GROUP_H_
#define BATON_SERVER_EXPERT_GROUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/expert_dispatch.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "engine/expert_placement.h"
#include "engine/model/deepseek_v3_runner.h"

namespace baton {

struct ExpertGroupOptions {
  uint32_t ep_size = 1;
  std::optional<uint32_t> num_redundant_experts;
  // Of one wait for the other ranks.
  absl::Duration watchdog = absl::Seconds(5);
};

// Thread-safe after Create.
class ExpertGroup {
 public:
  // An error names a flag. Borrows nothing.
  static absl::StatusOr<std::unique_ptr<ExpertGroup>> Create(
      const ExpertGroupOptions& options, const LoadedDeepSeekV3& weights);

  // Of one rank, which this must outlive.
  std::unique_ptr<ExpertDispatch> MakeDispatch(uint32_t rank) {
    return exchange_->MakeDispatch(static_cast<int>(rank));
  }
  // Of each layer with experts.
  std::span<const ExpertSlots> slots() const { return slots_; }
  // Not OK: a rank kept the others waiting for longer than the watchdog.
  absl::Status status() const { return exchange_->status(); }

 private:
  ExpertGroup() = default;

  std::unique_ptr<SharedExpertExchange> exchange_;
  std::vector<SlotTable> tables_;  // Of each layer; never resized.
  std::vector<ExpertSlots> slots_;
};

}  // namespace baton

#endif  // BATON_SERVER_EXPERT_GROUP_H_
