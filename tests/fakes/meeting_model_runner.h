// A model whose ranks meet in each step, as those with experts do.
#ifndef BATON_TESTS_FAKES_MEETING_MODEL_RUNNER_H_
#define BATON_TESTS_FAKES_MEETING_MODEL_RUNNER_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "comm/expert_boards.h"
#include "comm/expert_dispatch.h"
#include "engine/model_runner.h"
#include "tests/fakes/fake_model_runner.h"

namespace baton {

// Closed, it holds whoever passes. Thread-safe.
class Gate {
 public:
  void Set(bool open) {
    absl::MutexLock lock(&mutex_);
    open_ = open;
  }
  void Pass() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&open_));
  }

 private:
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
};

// A FakeModelRunner with one layer of experts that get no rows: but each
// forward waits for the other ranks as any exchange does. Thread rule:
// ModelRunner's.
class MeetingModelRunner final : public ModelRunner {
 public:
  // Borrows both, whose shape is `shape`; each forward passes the gate first.
  MeetingModelRunner(const FakeModelRunner::Options& options,
                     const ExpertGroupShape& shape, ExpertDispatch* dispatch,
                     Gate* gate)
      : shape_(shape),
        dispatch_(dispatch),
        gate_(gate),
        model_(options),
        info_(model_.info()) {
    info_.num_experts = static_cast<uint32_t>(shape.experts.num_experts);
    info_.num_expert_layers = 1;
    info_.num_ranks = static_cast<uint32_t>(shape.num_ranks);
    info_.slots_per_rank = static_cast<uint32_t>(shape.slots_per_rank);
  }

  const ModelRunnerInfo& info() const override { return info_; }
  void BindKvPool(const KvPool* pool) override { model_.BindKvPool(pool); }
  void Forward(const ForwardBatch& batch,
               const ForwardOutput& output) override {
    gate_->Pass();
    CHECK_EQ(batch.expert_slots.size(), 1u);
    const int hidden_size = shape_.experts.hidden_size;
    dispatch_->Dispatch({.cols = hidden_size}, {.cols = shape_.experts.top_k},
                        batch.expert_slots[0]);
    dispatch_->Combine({.cols = hidden_size});
    model_.Forward(batch, output);
  }
  void Draft(const ForwardBatch&, MatrixView<const float>,
             const ForwardOutput&) override {
    LOG(FATAL) << "there is no drafter here";
  }
  absl::Status group_status() const override { return dispatch_->status(); }

 private:
  const ExpertGroupShape shape_;
  ExpertDispatch* const dispatch_;
  Gate* const gate_;
  FakeModelRunner model_;
  ModelRunnerInfo info_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_MEETING_MODEL_RUNNER_H_
