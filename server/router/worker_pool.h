// Which workers there are, how they are, and who takes the next request.
//
// Probes (worker_prober.h) and requests (generation_call.h) report to it; each
// worker's state follows the table in worker_state.h.
#ifndef BATON_SERVER_ROUTER_WORKER_POOL_H_
#define BATON_SERVER_ROUTER_WORKER_POOL_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/outlier_ejection.h"
#include "server/router/routing_policy.h"
#include "server/router/worker_state.h"

namespace baton {

struct WorkerAddress {
  std::string address;  // host:port
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  friend bool operator==(const WorkerAddress&, const WorkerAddress&) = default;
};

// How many workers a router looks after.
inline constexpr size_t kMaxWorkers = 512;

// Ranks are chosen, each with its load. A pair or a unified worker is chosen,
// whichever needs fewer last choices (a pair where that is equal): ready
// workers that are not full and that the request has not failed on, then any
// ready one, then suspects and those that outlier_ejection.h has ejected. One
// that is to be tried again gets the next request that has not failed yet.
// Thread-safe.
class WorkerPool final {
 public:
  struct Options {
    std::vector<WorkerAddress> workers = {};  // The first to join.
    // The router's own; workers that differ are refused.
    std::string text_hash;
    uint32_t vocab_size = 0;
    // For each role its own policy, made by this.
    std::function<std::unique_ptr<RoutingPolicy>(v1::WorkerRole)> make_policy;
    OutlierEjection::Options ejection = {};
    const Clock* clock = nullptr;  // Borrowed; null: the system's.
    // Called when somebody can serve again, or nobody can any more. Under the
    // lock: it must not call back. May be empty.
    std::function<void(bool ready)> on_ready_change = {};
    // Called when somebody is ejected. As above.
    std::function<void(EjectionReason why)> on_ejection = {};
    // Called when the last request at a worker that left has ended. Without the
    // lock: whoever has connections takes its own, under which it asks probers,
    // who tell the pool.
    std::function<void(WorkerId worker)> on_gone = {};
  };
  struct Member {
    WorkerId id;
    WorkerAddress where;
  };

  explicit WorkerPool(Options options);

  // --- Who belongs to it.
  WorkerId Join(WorkerAddress where) ABSL_LOCKS_EXCLUDED(mutex_);
  // It takes no new request; those at it go on. REQUIRES: it is a member.
  void Leave(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that have joined and not left, in that order.
  std::vector<Member> members() const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- From probes. Of a worker that left: ignored.
  void OnProbe(WorkerId worker, const v1::GetWorkerInfoResponse& info,
               const v1::GetLoadResponse& load) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnLoad(WorkerId worker, const v1::GetLoadResponse& load)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProbeFailed(WorkerId worker, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // --- From requests.
  // Counts the request at the route's workers until each one's OnRequestEnded.
  // UNAVAILABLE, with a retry delay and what workers are refused for, when
  // nobody can serve who meets the needs.
  absl::StatusOr<Route> FindRoute(const RouteNeeds& needs)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `rank`: of the route. `load`: as the worker reported it, without this
  // request.
  void OnRequestEnded(WorkerId worker, uint32_t rank,
                      const std::optional<v1::GetLoadResponse>& load)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Its call has brought what shows that the worker works.
  void OnCallAnswered(WorkerId worker, uint64_t call)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Or never began. Before OnRequestEnded.
  void OnCallEnded(WorkerId worker, uint64_t call, CallOutcome outcome)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Unavailable to a request; or full, for so long. It may be gone.
  void OnSuspect(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFull(WorkerId worker, absl::Duration delay)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What is served now, or was last; UNAVAILABLE like FindRoute before that.
  absl::StatusOr<ServedModel> Served() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until somebody can serve.
  void WaitUntilReady() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Requests of this router at all workers; one at a pair counts twice.
  int64_t num_in_flight() const ABSL_LOCKS_EXCLUDED(mutex_);
  // kLeft also when it is gone.
  WorkerState state(WorkerId worker) const ABSL_LOCKS_EXCLUDED(mutex_);
  int num_ejected() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of those that are not gone, by WorkerState; of one role, or of all.
  std::array<int, kNumWorkerStates> CountStates(
      std::optional<v1::WorkerRole> role = {}) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Worker {
    Worker(WorkerId its_id, WorkerAddress address)
        : id(its_id), where(std::move(address)) {}
    const WorkerId id;
    WorkerAddress where;
    WorkerState state = WorkerState::kUnknown;
    std::string reason;       // Of its state; logged when it changes.
    std::string refused_for;  // kRefused: as clients are told.
    std::vector<WorkerLoad> loads = {WorkerLoad()};  // Of each of its ranks.
    int64_t num_in_flight() const;
    v1::GetWorkerInfoResponse info;  // Of its last good probe.
    absl::Time full_until = absl::InfinitePast();
  };
  struct Refusal {
    std::string_view field;  // Empty: none.
    std::string reason;
  };
  // Those who can take a request, and how good a choice they are.
  struct Candidates {
    std::vector<WorkerId> workers;
    RouteRank rank = RouteRank::kNone;
  };
  struct WorkerRank {
    WorkerId worker;
    uint32_t rank = 0;
    uint64_t call = 0;
  };

  WorkerId Add(WorkerAddress where) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: it has left.
  Worker* FindMember(WorkerId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One that has left goes once nothing is in flight there. True: on_gone is to
  // be told.
  bool MaybeForget(WorkerId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Refusal FindRefusal(WorkerId worker,
                      const v1::GetWorkerInfoResponse& info) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Refusal FindRefusal(const v1::GetWorkerInfoResponse& info,
                      const Worker& other) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where it belongs by what it says of itself.
  void Judge(WorkerId id, Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MoveTo(Worker* worker, WorkerState to, std::string reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Candidates Find(v1::WorkerRole role, const RouteNeeds& needs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WorkerRank Take(v1::WorkerRole role, const Candidates& candidates,
                  std::span<const PrefixKey> prefix)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ServedModel ServedNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NobodyServes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Serves(v1::WorkerRole role) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CanServe() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const MonotonicClock system_clock_;
  const Clock& clock_;

  mutable absl::Mutex mutex_;
  // Those that are not gone.
  std::map<WorkerId, Worker> workers_ ABSL_GUARDED_BY(mutex_);
  WorkerId next_id_ ABSL_GUARDED_BY(mutex_){0};
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;  // As last told.
  // By role.
  std::array<std::unique_ptr<RoutingPolicy>, v1::WorkerRole_ARRAYSIZE> policies_
      ABSL_GUARDED_BY(mutex_);
  std::vector<OutlierEjection> ejections_ ABSL_GUARDED_BY(mutex_);
  std::optional<ServedModel> last_served_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_POOL_H_
