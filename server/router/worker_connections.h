// The channel and the prober of each worker: made when it joins, destroyed when
// it left and nobody uses them any more.
#ifndef BATON_SERVER_ROUTER_WORKER_CONNECTIONS_H_
#define BATON_SERVER_ROUTER_WORKER_CONNECTIONS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/router/worker_client.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_prober.h"
#include "server/router/worker_state.h"

namespace baton {

class WorkerConnections;

// Somebody makes calls to a worker: while it lives, its client does. Movable;
// thread-compatible.
class WorkerUse final {
 public:
  WorkerUse(WorkerUse&& other) noexcept
      : connections_(std::exchange(other.connections_, nullptr)),
        worker_(other.worker_),
        client_(other.client_) {}
  WorkerUse& operator=(WorkerUse&&) = delete;
  ~WorkerUse();

  WorkerClient& client() const { return *client_; }

 private:
  friend class WorkerConnections;
  WorkerUse(WorkerConnections* connections, WorkerId worker,
            WorkerClient* client)
      : connections_(connections), worker_(worker), client_(client) {}

  WorkerConnections* connections_;
  const WorkerId worker_;
  WorkerClient* const client_;
};

// One thread of its own makes and destroys them, none of gRPC's: a prober ends
// only when its probe does. Thread-safe; outlives the uses.
class WorkerConnections final {
 public:
  // Begins to probe the pool's members. The pool is borrowed and outlives this.
  WorkerConnections(WorkerProber::Options prober, WorkerPool* pool);
  ~WorkerConnections();
  WorkerConnections(const WorkerConnections&) = delete;
  WorkerConnections& operator=(const WorkerConnections&) = delete;

  // Who is to belong to the pool from now on. Returns before they do.
  void SetWorkers(std::vector<WorkerAddress> workers)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The pool's on_gone.
  void OnGone(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);

  // REQUIRES: a request counts at the worker, so that it is not gone.
  WorkerUse Use(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing, if it has left.
  void ProbeSoon(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  // Channels there are.
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class WorkerUse;
  struct Connection {
    std::unique_ptr<WorkerClient> client;
    std::unique_ptr<WorkerProber> prober;  // Null: it has left.
    int num_uses = 0;
    bool gone = false;  // From the pool.
  };

  void OnUseEnded(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run();
  void Change(const std::vector<WorkerAddress>& workers)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Connect(WorkerId worker, const std::string& address)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Disconnect(WorkerId worker) ABSL_LOCKS_EXCLUDED(mutex_);
  // Once nobody uses it any more.
  void MaybeEnd(WorkerId worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WorkerProber::Options prober_options_;
  WorkerPool* const pool_;

  mutable absl::Mutex mutex_;
  std::map<WorkerId, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<WorkerAddress>> wanted_ ABSL_GUARDED_BY(mutex_);
  // Nobody uses them any more.
  std::vector<Connection> ended_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // Last: it uses the others.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_CONNECTIONS_H_
