// The StreamBudget of a simulated process.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_PROCESS_STREAMS_H_
#define BATON_TESTS_SIMULATION_SYSTEM_PROCESS_STREAMS_H_

#include <cstdint>

#include "base/logging.h"
#include "server/edge/stream_budget.h"
#include "tests/simulation/system/event_loop.h"

namespace baton {

// Its time passes by the loop, while a stream is open. One thread.
class ProcessStreams final {
 public:
  // Borrows the loop.
  ProcessStreams(const StreamLimits& limits, EventLoop* loop)
      : loop_(*loop), budget_(limits) {}
  ~ProcessStreams() { Stop(); }
  ProcessStreams(const ProcessStreams&) = delete;
  ProcessStreams& operator=(const ProcessStreams&) = delete;

  StreamBudget* budget() { return &budget_; }
  void OnBegun() {
    if (num_open_++ == 0) TickLater();
  }
  void OnOver() {
    if (--num_open_ == 0) Stop();
  }
  // The process has died; no stream begins any more.
  void Stop() { loop_.Cancel(next_); }
  // No byte waits for a reader, and nothing stands still for one.
  void CheckNothingIsLeft() const {
    const StreamCounts counts = budget_.counts();
    CHECK_EQ(counts.bytes, 0u);
    CHECK_EQ(counts.paused, 0u);
    CHECK_EQ(num_open_, 0u);
  }

 private:
  void TickLater() {
    next_ = loop_.After(budget_.tick_period(), [this] {
      TickLater();
      budget_.Tick();
    });
  }

  EventLoop& loop_;
  StreamBudget budget_;
  uint64_t num_open_ = 0;
  EventLoop::Timer next_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_PROCESS_STREAMS_H_
