// What one server-streaming call has to send, and when to send or end it.
#ifndef BATON_SERVER_EDGE_STREAM_QUEUE_H_
#define BATON_SERVER_EDGE_STREAM_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "server/edge/stream_budget.h"

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
//   kNothing touch nothing: the call may be over already.
//
// Before it acts, it asks TakeFlow until there is nothing: a queue that is high
// pauses its producer, one that is low lets it go on.
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
  enum class Action { kNothing, kWrite, kFinish };
  enum class Flow { kPause, kGoOn };

  // A message is merged with one of the newest so many, which may be those of
  // as many answers that take turns, and no further than to so many bytes: a
  // slow reader takes one from time to time.
  static constexpr size_t kMaxMergeDistance = 128;
  static constexpr size_t kMaxMergedBytes = 16 * 1024;

  // Borrows the account, whose limits are in force.
  explicit StreamQueue(StreamBudget::Account* account) : account_(*account) {}

  // Dropped when the peer is gone.
  Action Push(Message message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CHECK(!end_.has_value()) << "a message after the end";
    if (peer_gone_) return Action::kNothing;
    Append(std::move(message));
    const Action action = Next();
    if (queued_bytes_ >= account_.limits().pause_bytes) SetFlow(Flow::kPause);
    return action;
  }

  // The producer's last word; what is queued goes out before it.
  Action End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CHECK(!end_.has_value()) << "ended twice";
    end_ = std::move(status);
    SetFlow(Flow::kGoOn);  // No producer stands still any more.
    return Next();
  }

  Action OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    CHECK(writing_) << "no write in flight";
    writing_ = false;
    in_flight_ = Message();
    in_flight_bytes_ = 0;
    if (!ok) DropQueue();
    return Next();
  }

  // Cancelled, past its deadline, or cut. The producer is not told here.
  Action OnPeerGone() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    DropQueue();
    return Next();
  }

  // What the producer is to be told now, then FlowTold follows; nothing while
  // another thread tells it: that one asks again.
  std::optional<Flow> TakeFlow() ABSL_LOCKS_EXCLUDED(mutex_) {
    if (!flow_changed_.load(std::memory_order_relaxed)) return std::nullopt;
    absl::MutexLock lock(&mutex_);
    if (telling_ || end_.has_value() || flow_ == told_) return std::nullopt;
    telling_ = true;
    told_ = flow_;
    flow_changed_.store(false, std::memory_order_relaxed);
    return told_;
  }
  void FlowTold() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    telling_ = false;
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
  void Append(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t bytes = Traits::Bytes(message);
    if (MergeIntoQueued(message, bytes)) return;
    queue_.push_back(std::move(message));
    queued_bytes_ += bytes;
  }

  // A merged message may take less than its parts, so it is counted anew.
  bool MergeIntoQueued(Message& message, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t tries = std::min(queue_.size(), kMaxMergeDistance);
    for (size_t i = 1; i <= tries; ++i) {
      Message& last = queue_[queue_.size() - i];
      const size_t before = Traits::Bytes(last);
      // It might be what the message belongs behind.
      if (before + bytes > kMaxMergedBytes) return false;
      if (!Traits::Merge(&last, message)) continue;
      queued_bytes_ += Traits::Bytes(last);
      queued_bytes_ -= before;
      return true;
    }
    return false;
  }

  void DropQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    peer_gone_ = true;
    queue_.clear();
    queued_bytes_ = 0;
  }

  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Action action = ChooseNext();
    account_.SetBytes(queued_bytes_ + in_flight_bytes_);
    if (queued_bytes_ <= account_.limits().resume_bytes) SetFlow(Flow::kGoOn);
    return action;
  }

  Action ChooseNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return Action::kNothing;
    if (!queue_.empty()) {
      in_flight_ = std::move(queue_.front());
      queue_.pop_front();
      in_flight_bytes_ = Traits::Bytes(in_flight_);
      queued_bytes_ -= in_flight_bytes_;
      writing_ = true;
      account_.SetWriting(true);
      return Action::kWrite;
    }
    account_.SetWriting(false);
    if (!end_.has_value()) return Action::kNothing;
    finished_ = true;
    return Action::kFinish;
  }

  void SetFlow(Flow flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (flow == flow_) return;
    flow_ = flow;
    account_.SetPaused(flow == Flow::kPause);
    flow_changed_.store(true, std::memory_order_relaxed);
  }

  StreamBudget::Account& account_;
  std::atomic<bool> flow_changed_{false};  // Whoever has changed it sees that.

  absl::Mutex mutex_;
  std::deque<Message> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Message in_flight_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  Flow flow_ ABSL_GUARDED_BY(mutex_) = Flow::kGoOn;
  Flow told_ ABSL_GUARDED_BY(mutex_) = Flow::kGoOn;
  bool telling_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_QUEUE_H_
