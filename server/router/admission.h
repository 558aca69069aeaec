// How many requests work at once, how many wait, and which ids are in use.
#ifndef BATON_SERVER_ROUTER_ADMISSION_H_
#define BATON_SERVER_ROUTER_ADMISSION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/strong_int.h"

namespace baton {

// One request, numbered by the router in the order of arrival.
BATON_DEFINE_STRONG_INT(AdmissionTicket, uint64_t);

// First come, first served, with a bound on both. Thread-safe.
class Admission final {
 public:
  struct Options {
    uint32_t max_concurrent_requests = 256;
    uint32_t max_queued_requests = 1024;
  };
  using StartFunction = absl::AnyInvocable<void()>;
  using ShedFunction = absl::AnyInvocable<void(const absl::Status&)>;

  explicit Admission(Options options) : options_(options) {}

  // RESOURCE_EXHAUSTED with a retry delay when all places are taken;
  // ALREADY_EXISTS when a live request has this client_request_id (empty:
  // none). Else `start` is called when it is this request's turn, in here or in
  // another one's Leave, without a lock; and the request must Leave. While it
  // waits `shed` may end it, at most once. REQUIRES: a ticket that was not used
  // before.
  absl::Status Enter(
      AdmissionTicket ticket, const std::string& client_request_id,
      StartFunction start, ShedFunction shed = [](const absl::Status&) {})
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The request is over, or gave up waiting. Its `start` may be about to be
  // called all the same.
  void Leave(AdmissionTicket ticket) ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells the younger half of those that wait, with this status; how many.
  uint64_t ShedWaiting(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whose turn has come: a request that is paused gives its place up, and needs
  // none to go on. So more may work at once for a while, but none that waits
  // for its client keeps another one waiting.
  void SetPaused(AdmissionTicket ticket, bool paused)
      ABSL_LOCKS_EXCLUDED(mutex_);

  uint32_t num_running() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint32_t num_waiting() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    StartFunction start;
    ShedFunction shed;
  };

  void StartNext() ABSL_LOCKS_EXCLUDED(mutex_);
  // To the first that waits, while there are any.
  void FreePlace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable absl::Mutex mutex_;
  uint32_t num_running_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<AdmissionTicket> paused_ ABSL_GUARDED_BY(mutex_);
  std::map<AdmissionTicket, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // Their turn has come; one thread at a time calls them, in a loop, so that
  // requests that end at once do not nest.
  std::deque<StartFunction> to_start_ ABSL_GUARDED_BY(mutex_);
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<AdmissionTicket, std::string> client_ids_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> live_client_ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ADMISSION_H_
