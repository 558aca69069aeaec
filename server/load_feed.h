// Tells watchers of WatchLoad the load of a process's ranks.
#ifndef BATON_SERVER_LOAD_FEED_H_
#define BATON_SERVER_LOAD_FEED_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/edge/request_gate.h"
#include "server/edge/stream_budget.h"
#include "server/load_pacer.h"

namespace baton {

// Streams at a time; more are RESOURCE_EXHAUSTED.
inline constexpr size_t kMaxLoadWatchers = 64;

// One thread looks at the load, not the engine's: as often as the most curious
// watcher may be told while there are requests, only for signs of life when
// there are none, and never without a watcher. Thread-safe; outlives its
// streams.
class LoadFeed final {
 public:
  using Stream = grpc::ServerWriteReactor<v1::GetLoadResponse>;

  // `read` is thread-safe. All are borrowed; the gate outlives this and is not
  // being closed when this ends.
  LoadFeed(const Clock* clock, RequestGate* gate, StreamBudget* streams,
           std::function<v1::GetLoadResponse()> read);
  // Ends the streams.
  ~LoadFeed();
  LoadFeed(const LoadFeed&) = delete;
  LoadFeed& operator=(const LoadFeed&) = delete;

  // A stream that ends with DrainingError once the gate closes, and is no
  // request inside it.
  Stream* Watch(grpc::CallbackServerContext* context,
                const v1::WatchLoadRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A request was submitted: the load changes soon.
  void OnRequest() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Watcher;
  struct Subscription {
    uint64_t id;
    Watcher* watcher;
    LoadPacer pacer;
  };
  // For the thread.
  struct Events {
    std::vector<Subscription> added;
    std::vector<uint64_t> gone;  // Ids of those whose reader is.
    bool requested = false;
    bool closed = false;
    bool stopping = false;
  };

  absl::Status Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnGone(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasEvents() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The thread's.
  void Run();
  Events Await(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(const Events& events);
  void End(Watcher* watcher, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how long to wait for the next look.
  absl::Duration Tell();
  absl::Duration TimeToNextLook(absl::Time now);

  const Clock* const clock_;
  RequestGate* const gate_;
  StreamBudget* const streams_;
  const std::function<v1::GetLoadResponse()> read_;

  std::atomic<uint64_t> num_subscriptions_{0};  // Ever.
  std::atomic<uint64_t> num_requests_{0};
  std::atomic<bool> resting_{false};  // OnRequest must wake the thread.

  absl::Mutex mutex_;
  Events events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  size_t num_watchers_ ABSL_GUARDED_BY(mutex_) = 0;

  // The thread's.
  std::vector<Subscription> subscriptions_;
  std::vector<uint64_t> requests_by_rank_;  // At the last look.
  uint64_t version_ = 0;                    // Counts its changes.
  uint64_t seen_requests_ = 0;
  absl::Time busy_until_ = absl::InfinitePast();

  std::thread thread_;  // Last: it uses the others.
};

}  // namespace baton

#endif  // BATON_SERVER_LOAD_FEED_H_
