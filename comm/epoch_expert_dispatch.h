// A rank's dispatch that outlives its group: what lies behind it changes with
// each epoch.
#ifndef BATON_COMM_EPOCH_EXPERT_DISPATCH_H_
#define BATON_COMM_EPOCH_EXPERT_DISPATCH_H_

#include <memory>
#include <utility>

#include "base/logging.h"
#include "comm/expert_boards.h"
#include "comm/expert_dispatch.h"

namespace baton {

// Thread rule: ExpertDispatch's; Bind is called by whoever launches steps,
// while the rank's device has none.
class EpochExpertDispatch final : public ExpertDispatch {
 public:
  // The shape is the same in each epoch.
  EpochExpertDispatch(const ExpertGroupShape& shape, int rank)
      : shape_(shape), rank_(rank) {}

  // Null: between two epochs, where no step runs.
  void Bind(std::unique_ptr<ExpertDispatch> dispatch) {
    bound_ = std::move(dispatch);
  }

  int rank() const override { return rank_; }
  int num_ranks() const override { return shape_.num_ranks; }
  int slots_per_rank() const override { return shape_.slots_per_rank; }
  int max_rows() const override { return shape_.max_rows(); }
  ExpertRows Dispatch(MatrixView<const float> x,
                      MatrixView<const int32_t> experts,
                      const ExpertSlots& slots) override {
    return bound().Dispatch(x, experts, slots);
  }
  void Combine(MatrixView<float> routed) override { bound().Combine(routed); }
  absl::Status status() const override { return bound().status(); }

 private:
  ExpertDispatch& bound() const {
    CHECK(bound_ != nullptr) << "a step outside an epoch";
    return *bound_;
  }

  const ExpertGroupShape shape_;
  const int rank_;
  std::unique_ptr<ExpertDispatch> bound_;
};

}  // namespace baton

#endif  // BATON_COMM_EPOCH_EXPERT_DISPATCH_H_
