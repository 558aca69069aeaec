// A queue with many producers and one consumer that drains it whole.
#ifndef BATON_BASE_MPSC_QUEUE_H_
#define BATON_BASE_MPSC_QUEUE_H_

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Thread-safe. One short critical section a push and one a drain: the consumer
// takes everything at once, so a busy consumer locks once a round, not once an
// item. Not bounded here: what is pushed is bounded by its producers (admission
// happens before a push), and each owner states its bound.
template <typename T>
class MpscQueue {
 public:
  void Push(T item) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    items_.push_back(std::move(item));
  }

  // Swaps all items, oldest first, into `*out`, whose old content is dropped.
  void Drain(std::vector<T>* out) ABSL_LOCKS_EXCLUDED(mutex_) {
    out->clear();
    absl::MutexLock lock(&mutex_);
    items_.swap(*out);
  }

  // Blocks until an item is there, Wake() was called, or `timeout` has passed.
  // True if there are items.
  bool WaitForItem(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &MpscQueue::HasItemOrWake),
                            timeout);
    woken_ = false;
    return !items_.empty();
  }

  // Ends the current or the next WaitForItem.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
  }

 private:
  bool HasItemOrWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return woken_ || !items_.empty();
  }

  absl::Mutex mutex_;
  std::vector<T> items_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_BASE_MPSC_QUEUE_H_
