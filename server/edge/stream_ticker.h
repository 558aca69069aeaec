// The thread by which time passes for a process's streams.
#ifndef BATON_SERVER_EDGE_STREAM_TICKER_H_
#define BATON_SERVER_EDGE_STREAM_TICKER_H_

#include <thread>

#include "absl/synchronization/notification.h"
#include "server/edge/stream_budget.h"

namespace baton {

class StreamTicker final {
 public:
  // Borrows the budget.
  explicit StreamTicker(StreamBudget* budget)
      : thread_([this, budget] {
          const absl::Duration period = budget->tick_period();
          while (!stop_.WaitForNotificationWithTimeout(period)) budget->Tick();
        }) {}
  ~StreamTicker() {
    stop_.Notify();
    thread_.join();
  }
  StreamTicker(const StreamTicker&) = delete;
  StreamTicker& operator=(const StreamTicker&) = delete;

 private:
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_TICKER_H_
