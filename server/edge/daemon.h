// The life of a server process, from its flags to its exit code.
//
//   kStarting --Serve()--> kServing --signal--> kDraining --> kStopped
//       \------------------ Serve() failed ------------------/
//
// Until Serve() a signal ends the process at once, with exit code 0: there is
// nothing to finish yet.
#ifndef BATON_SERVER_EDGE_DAEMON_H_
#define BATON_SERVER_EDGE_DAEMON_H_

#include <grpcpp/grpcpp.h>
#include <prometheus/registry.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/edge/config.h"
#include "server/edge/metrics.h"
#include "server/edge/request_gate.h"

namespace baton {

enum class DaemonState { kStarting, kServing, kDraining, kStopped };

constexpr bool IsLegalTransition(DaemonState from, DaemonState to) {
  using enum DaemonState;
  switch (from) {
    case kStarting:  // The listener is up, or it failed.
      return to == kServing || to == kStopped;
    case kServing:  // The first SIGTERM or SIGINT, or Stop().
      return to == kDraining;
    case kDraining:  // The last request left, the grace ended, or a second
                     // signal.
      return to == kStopped;
    case kStopped:
      return false;
  }
  return false;
}

struct DaemonOptions {
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen = "127.0.0.1:0";
  absl::Duration drain_grace = absl::Seconds(25);
  uint32_t verbosity = 0;
};

struct ServedService {
  std::string name;  // Full: baton.v1.WorkerService.
  grpc::Service* service = nullptr;
};

// --listen, --metrics_listen, --drain_grace and --verbosity, under "Process".
// The defaults are what `options` holds.
void AddDaemonFlags(Flags* flags, DaemonOptions* options);

// Owned by main, whose thread calls everything but gate(), state(), SetReady()
// and Stop(), which are thread-safe.
class Daemon {
 public:
  // Takes SIGTERM and SIGINT; logs version and configuration in force. `role`
  // is a word for the endpoint line. One a process serves at a time.
  Daemon(DaemonOptions options, std::string role, const Flags& flags);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Where the process' metrics go.
  prometheus::Registry& registry() { return registry_; }
  // Every streaming call passes it: closed while draining, awaited at the end.
  RequestGate& gate() { return gate_; }
  DaemonState state() const { return state_.load(std::memory_order_acquire); }

  // Starts /metrics, /healthz and /readyz; early, so that liveness shows while
  // a model loads. `before_scrape` sets gauges. An error names the flag.
  absl::Status StartMetrics(std::function<void()> before_scrape);

  // Everything is warm: listens, with health and reflection, logs "listening"
  // and prints on stdout, in one line for programs:
  //   baton <role> grpc=127.0.0.1:PORT http=127.0.0.1:PORT
  // The services are borrowed until Run returns. An error names the flag.
  absl::Status Serve(const std::vector<ServedService>& services);

  // Waits for a signal or Stop(), then drains: NOT_SERVING and the gate closed
  // at once; waits for the gate to empty, at most --drain_grace, a second
  // signal ending the wait; then cuts what is left, cancels what does not end
  // by that, and stops. Returns main's exit code: 0. REQUIRES: Serve was OK.
  int Run();

  // Whether the process could do its work now: what health and /readyz say
  // while it serves. True until set.
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(ready_mutex_);

  // Called on Run's thread when a drain begins, with the gate closed.
  void OnDrain(std::function<void()> on_drain) {
    on_drain_ = std::move(on_drain);
  }

  // As a first signal would, from any thread.
  void Stop();

  int grpc_port() const { return grpc_port_; }
  int metrics_port() const;

 private:
  enum class Event { kSignal, kWoken, kTimeout };
  Event Await(absl::Time deadline);
  void Wake();
  bool IsReady() const ABSL_LOCKS_EXCLUDED(ready_mutex_);
  // `to`, and what health says in it.
  void SetState(DaemonState to) ABSL_LOCKS_EXCLUDED(ready_mutex_);
  void Drain();
  // Until then; kWoken: it is empty.
  Event AwaitEmptyGate(absl::Time deadline);

  const DaemonOptions options_;
  const std::string role_;
  const int signal_fd_;
  const int wake_fd_;
  prometheus::Registry registry_;
  RequestGate gate_;
  std::atomic<DaemonState> state_{DaemonState::kStarting};
  std::atomic<bool> stop_requested_{false};
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<grpc::Server> server_;
  std::function<void()> on_drain_;
  int grpc_port_ = 0;
  std::vector<std::string> service_names_;

  // Held while state_ or health changes, so that health tells the newest.
  mutable absl::Mutex ready_mutex_;
  bool ready_ ABSL_GUARDED_BY(ready_mutex_) = true;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_DAEMON_H_
