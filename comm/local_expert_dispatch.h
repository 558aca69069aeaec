// ExpertDispatch for a group of one rank: all experts are here.
#ifndef BATON_COMM_LOCAL_EXPERT_DISPATCH_H_
#define BATON_COMM_LOCAL_EXPERT_DISPATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "comm/expert_dispatch.h"
#include "comm/slot_choices.h"

namespace baton {

// As many slots as experts. Allocates at construction alone, never fails.
class LocalExpertDispatch final : public ExpertDispatch {
 public:
  explicit LocalExpertDispatch(const ExpertShape& shape);

  int rank() const override { return 0; }
  int num_ranks() const override { return 1; }
  int slots_per_rank() const override { return shape_.num_experts; }
  int max_rows() const override { return shape_.max_tokens * shape_.top_k; }
  ExpertRows Dispatch(MatrixView<const float> x,
                      MatrixView<const int32_t> experts,
                      const ExpertSlots& slots) override;
  void Combine(MatrixView<float> routed) override;
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const ExpertShape shape_;
  SlotChooser chooser_;

  int num_rows_ = 0;              // tokens * top_k of the layer in exchange.
  std::vector<int32_t> offsets_;  // [experts + 1]
  std::vector<int32_t> choices_;  // Row i here is row choices_[i] of `routed`.
  std::vector<float> inputs_;
  std::vector<float> outputs_;
};

}  // namespace baton

#endif  // BATON_COMM_LOCAL_EXPERT_DISPATCH_H_
