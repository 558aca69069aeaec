// What all streams of a process may keep for readers that are behind, and which
// of these is cut.
#ifndef BATON_SERVER_EDGE_STREAM_BUDGET_H_
#define BATON_SERVER_EDGE_STREAM_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// The reason, in front of the message of what a slow reader's call ends with.
inline constexpr char kSlowReaderReason[] = "SLOW_READER";

// Whether a call has ended so. What is cut carries no details, so its text
// tells.
bool IsSlowReaderCut(const absl::Status& status);

struct StreamLimits {
  // Of one stream. So many bytes wait: its producer is paused; so few are left:
  // it goes on. What is under way when it pauses still comes.
  size_t pause_bytes = 64 * 1024;
  size_t resume_bytes = 16 * 1024;
  // Of all streams together, with what is being written.
  size_t max_bytes = 256 * 1024 * 1024;
  // A message that its reader does not take for so long ends the call.
  absl::Duration slow_reader_timeout = absl::Seconds(60);
};

struct StreamCounts {
  uint64_t bytes = 0;   // Queued or being written now.
  uint64_t paused = 0;  // Streams whose producers are paused now.
  uint64_t pauses = 0;  // Since the start, as the others.
  uint64_t cut_by_timeout = 0;
  uint64_t cut_by_memory = 0;
};

// Thread-safe, free of gRPC and of a clock: time passes by Tick. When there are
// too many bytes those streams are cut first whose reader has not taken a
// message for longest, of several the one with the most bytes, of these the one
// that began first: a reader that keeps up has none that is old.
class StreamBudget final {
 public:
  // A reader has so many ticks to take a message, and a part of one more.
  static constexpr int64_t kTicksToCut = 16;

  // Ends a stream's call from this side with the status. Called without a lock,
  // by copies that may outlive the stream; must only notify.
  using CutFunction = std::function<void(const absl::Status&)>;

  // One stream's part. Its counts are for one thread at a time.
  class Account final {
   public:
    // Borrows the budget.
    Account(StreamBudget* budget, CutFunction cut);
    ~Account();
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    const StreamLimits& limits() const { return budget_->limits_; }
    void SetBytes(size_t bytes);
    // A message waits for its reader from now on, or none does.
    void SetWriting(bool writing);
    void SetPaused(bool paused);
    // Cuts streams, perhaps this one, while there are too many bytes. Not with
    // a lock that `cut` might take.
    void Settle() { budget_->Settle(); }
    bool is_cut() const { return is_cut_.load(); }

   private:
    friend class StreamBudget;
    static constexpr int64_t kNotWriting = -1;

    StreamBudget* const budget_;
    const CutFunction cut_;
    uint64_t number_ = 0;  // In the order in which they begin.
    std::atomic<size_t> bytes_{0};
    std::atomic<int64_t> writing_since_{kNotWriting};  // The tick.
    std::atomic<bool> paused_{false};
    std::atomic<bool> is_cut_{false};
  };

  explicit StreamBudget(const StreamLimits& limits) : limits_(limits) {}
  // REQUIRES: no account is left.
  ~StreamBudget();
  StreamBudget(const StreamBudget&) = delete;
  StreamBudget& operator=(const StreamBudget&) = delete;

  const StreamLimits& limits() const { return limits_; }
  // Every tick_period(): cuts those whose time is over.
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration tick_period() const;
  StreamCounts counts() const;

 private:
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next to be cut for memory; null: nobody is behind.
  Account* FindStuck() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t BytesOfCut() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StreamLimits limits_;
  std::atomic<size_t> bytes_{0};
  std::atomic<int64_t> tick_{0};
  std::atomic<uint64_t> paused_{0};
  std::atomic<uint64_t> pauses_{0};
  std::atomic<uint64_t> cut_by_timeout_{0};
  std::atomic<uint64_t> cut_by_memory_{0};

  mutable absl::Mutex mutex_;
  uint64_t num_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Account*> accounts_ ABSL_GUARDED_BY(mutex_);  // By number.
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_BUDGET_H_
