// A rank's dispatch that adds up what its device thread does.
#ifndef BATON_BENCH_TIMED_EXPERT_DISPATCH_H_
#define BATON_BENCH_TIMED_EXPERT_DISPATCH_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "comm/expert_dispatch.h"

namespace baton {

inline int64_t ThreadCpuNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// CPU time of a rank's device thread so far, in nanoseconds. Written by that
// thread alone, read by any.
struct DeviceCpu {
  std::atomic<int64_t> exchange{0};  // Dispatch and Combine: copies, barriers.
  std::atomic<int64_t> experts{0};   // Between the two.
  std::atomic<int64_t> all{0};       // To the end of the newest Combine.
  std::atomic<int64_t> barriers{0};  // Their number: two a layer.

  static void Add(std::atomic<int64_t>* to, int64_t more) {
    to->store(to->load(std::memory_order_relaxed) + more,
              std::memory_order_relaxed);
  }
};

// Four reads of the thread's clock a layer.
class TimedExpertDispatch final : public ExpertDispatch {
 public:
  // Borrows `cpu`.
  TimedExpertDispatch(std::unique_ptr<ExpertDispatch> dispatch, DeviceCpu* cpu)
      : dispatch_(std::move(dispatch)), cpu_(cpu) {}

  int rank() const override { return dispatch_->rank(); }
  int num_ranks() const override { return dispatch_->num_ranks(); }
  int slots_per_rank() const override { return dispatch_->slots_per_rank(); }
  int max_rows() const override { return dispatch_->max_rows(); }
  absl::Status status() const override { return dispatch_->status(); }

  ExpertRows Dispatch(MatrixView<const float> x,
                      MatrixView<const int32_t> experts,
                      const ExpertSlots& slots) override {
    const int64_t start = ThreadCpuNanoseconds();
    const ExpertRows rows = dispatch_->Dispatch(x, experts, slots);
    dispatched_ = ThreadCpuNanoseconds();
    DeviceCpu::Add(&cpu_->exchange, dispatched_ - start);
    return rows;
  }

  void Combine(MatrixView<float> routed) override {
    const int64_t start = ThreadCpuNanoseconds();
    DeviceCpu::Add(&cpu_->experts, start - dispatched_);
    dispatch_->Combine(routed);
    const int64_t end = ThreadCpuNanoseconds();
    DeviceCpu::Add(&cpu_->exchange, end - start);
    cpu_->all.store(end, std::memory_order_relaxed);
    DeviceCpu::Add(&cpu_->barriers, 2);
  }

 private:
  const std::unique_ptr<ExpertDispatch> dispatch_;
  DeviceCpu* const cpu_;
  int64_t dispatched_ = 0;
};

}  // namespace baton

#endif  // BATON_BENCH_TIMED_EXPERT_DISPATCH_H_
