// A thread for long texts, so that tokenising them delays nobody's tokens.
#ifndef BATON_SERVER_ROUTER_TEXT_EXECUTOR_H_
#define BATON_SERVER_ROUTER_TEXT_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// gRPC's few threads relay all tokens of all requests: none of them may work on
// one text for long. Short ones are done where they come in. Thread-safe.
class TextExecutor final {
 public:
  using Job = absl::AnyInvocable<void()>;

  static constexpr size_t kMaxInlineBytes = 16 * 1024;
  static constexpr size_t kMaxQueuedJobs = 64;

  TextExecutor();
  // Runs what is queued, and returns.
  ~TextExecutor();
  TextExecutor(const TextExecutor&) = delete;
  TextExecutor& operator=(const TextExecutor&) = delete;

  // Runs `job`, which works on `text_bytes`: here and now, or later on the
  // thread, in order. RESOURCE_EXHAUSTED, with a retry delay, when too many
  // wait: then it is never run.
  absl::Status Run(size_t text_bytes, Job job) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop();
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty();
  }

  absl::Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last: it uses the others.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_TEXT_EXECUTOR_H_
