// Counts the requests in a process, and closes the door when it drains.
#ifndef BATON_SERVER_EDGE_REQUEST_GATE_H_
#define BATON_SERVER_EDGE_REQUEST_GATE_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// Thread-safe.
class RequestGate {
 public:
  // `on_empty` is called, without a lock, whenever the closed gate has become
  // empty.
  explicit RequestGate(std::function<void()> on_empty = {});

  // OK: the caller must Leave() when its request is over. UNAVAILABLE with a
  // retry delay once closed.
  absl::Status Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t inside() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::function<void()> on_empty_;
  mutable absl::Mutex mutex_;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_REQUEST_GATE_H_
