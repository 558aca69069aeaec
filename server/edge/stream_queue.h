// What one server-streaming call has to send, and when to send or end it.
#ifndef BATON_SERVER_EDGE_STREAM_QUEUE_H_
#define BATON_SERVER_EDGE_STREAM_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"

namespace baton {

// Thread-safe, free of gRPC. One producer pushes and ends; the transport's
// threads report. Each event decides under the mutex and returns what its
// caller must do after the lock is gone:
//
//   kWrite   write message(), and report OnWriteDone. At most one is in flight.
//   kFinish  end the call with status(). Returned exactly once, never while a
//            write is in flight, and only after End: the producer's last word.
//            Before the caller acts on it nobody else ends the call; once it
//            has, the queue may be gone.
//   kCut     the reader is too slow: cancel the call from this side. Once.
//   kNothing touch nothing: the call may be over already.
//
// `Traits` is a type with
//   static bool Merge(Message* last, Message& next)  `next` into `*last`, which
//                                                    is queued but not in
//                                                    flight; false: cannot.
//                                                    Then those before *last
//                                                    are tried: what takes it
//                                                    may be overtaken
//   static size_t Bytes(const Message&)              about what it takes
template <typename Message, typename Traits>
class StreamQueue {
 public:
  enum class Action { kNothing, kWrite, kFinish, kCut };

  // A message is merged with one of the newest so many. They are those of as
  // many answers, if it has several that take turns.
  static constexpr size_t kMaxMergeDistance = 128;

  // Bytes that may wait for a slow reader. A message that nothing waits before
  // may be of any size.
  explicit StreamQueue(size_t max_queued_bytes)
      : max_queued_bytes_(max_queued_bytes) {}

  // Dropped when the peer is gone, and from the first message that does not fit
  // beside what waits.
  Action Push(Message message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CHECK(!end_.has_value()) << "a message after the end";
    if (peer_gone_) return Action::kNothing;
    const size_t bytes = Traits::Bytes(message);
    if (queued_bytes_ > 0 && queued_bytes_ + bytes > max_queued_bytes_) {
      DropQueue();
      return Action::kCut;
    }
    Append(std::move(message), bytes);
    return Next();
  }

  // The producer's last word; what is queued goes out before it.
  Action End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CHECK(!end_.has_value()) << "ended twice";
    end_ = std::move(status);
    return Next();
  }

  Action OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CHECK(writing_) << "no write in flight";
    writing_ = false;
    if (!ok) DropQueue();
    return Next();
  }

  // The client cancelled, or its deadline passed. The producer is not told
  // here.
  Action OnPeerGone() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    DropQueue();
    return Next();
  }

  // REQUIRES: the caller got kWrite; until OnWriteDone.
  const Message* message() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return &in_flight_;
  }
  // REQUIRES: the caller got kFinish.
  const absl::Status& status() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return *end_;
  }

 private:
  // A merged message may take less than its parts, so it is counted anew.
  void Append(Message message, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t tries = std::min(queue_.size(), kMaxMergeDistance);
    for (size_t i = 1; i <= tries; ++i) {
      Message& last = queue_[queue_.size() - i];
      const size_t before = Traits::Bytes(last);
      if (!Traits::Merge(&last, message)) continue;
      queued_bytes_ += Traits::Bytes(last);
      queued_bytes_ -= before;
      return;
    }
    queue_.push_back(std::move(message));
    queued_bytes_ += bytes;
  }

  void DropQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    peer_gone_ = true;
    queue_.clear();
    queued_bytes_ = 0;
  }

  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return Action::kNothing;
    if (!queue_.empty()) {
      in_flight_ = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= Traits::Bytes(in_flight_);
      writing_ = true;
      return Action::kWrite;
    }
    if (!end_.has_value()) return Action::kNothing;
    finished_ = true;
    return Action::kFinish;
  }

  const size_t max_queued_bytes_;

  absl::Mutex mutex_;
  std::deque<Message> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Message in_flight_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_QUEUE_H_
