// Counts the requests in a process, and closes the door when it drains.
#ifndef BATON_SERVER_EDGE_REQUEST_GATE_H_
#define BATON_SERVER_EDGE_REQUEST_GATE_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/edge/request_size.h"

namespace baton {

// What a request hears that a draining process does not take, or cuts.
absl::Status DrainingError();

// Thread-safe.
class RequestGate {
 public:
  // `on_empty` is called, without a lock, whenever the closed gate has become
  // empty.
  explicit RequestGate(std::function<void()> on_empty = {});

  // OK: the caller must Leave() when what it came for is over. DrainingError
  // once closed.
  absl::Status Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for a request, which OnEnter's may refuse, too.
  absl::Status EnterWith(const RequestSize& size) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets what OnCut was told under this key.
  void Leave(const void* key = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  // For what is no request and ends with the serving of them: called once,
  // without a lock, by Close(), or here if that was before.
  void OnClose(const void* key, std::function<void()> on_close)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // REQUIRES: no Close() runs.
  void ForgetOnClose(const void* key) ABSL_LOCKS_EXCLUDED(mutex_);
  // `admit` says which requests may enter: called without a lock on whatever
  // thread brings one. Set before the first comes.
  void OnEnter(std::function<absl::Status(const RequestSize&)> admit) {
    admit_ = std::move(admit);
  }

  // `cut` ends a request that is inside soon, with DrainingError. Called at
  // most once, without a lock: by Cut(), perhaps as the request leaves, or here
  // if it was cut before. The key is the request's own.
  void OnCut(const void* key, const std::function<void()>& cut)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Those inside have had their time.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_cut() const ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t inside() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::function<void()> on_empty_;
  std::function<absl::Status(const RequestSize&)> admit_;
  mutable absl::Mutex mutex_;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const void*, std::function<void()>> cuts_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, std::function<void()>> closes_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_REQUEST_GATE_H_
