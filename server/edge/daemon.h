// The life of a server process, from its flags to its exit code.
//
//   kStarting --Serve()--> kServing --signal, Drain--> kDraining --> kStopped
//       \---------------------- Serve() failed ---------------------/
//
// Until Serve() a signal ends the process at once, with exit code 0: there is
// nothing to finish yet.
#ifndef BATON_SERVER_EDGE_DAEMON_H_
#define BATON_SERVER_EDGE_DAEMON_H_

#include <grpcpp/grpcpp.h>
#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/edge/admin_service.h"
#include "server/edge/config.h"
#include "server/edge/memory_guard.h"
#include "server/edge/metrics.h"
#include "server/edge/request_gate.h"

namespace baton {

enum class DaemonState { kStarting, kServing, kDraining, kStopped };

constexpr bool IsLegalTransition(DaemonState from, DaemonState to) {
  using enum DaemonState;
  switch (from) {
    case kStarting:  // The listener is up, or it failed.
      return to == kServing || to == kStopped;
    case kServing:  // The first SIGTERM or SIGINT, Stop(), or AdminService.
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
  std::string admin_token_file = {};  // Empty: only this host may drain it.
  MemoryGuardOptions memory = {};
  uint32_t verbosity = 0;
  absl::Duration tick = absl::Seconds(1);
};

struct ServedService {
  std::string name;  // Full: baton.v1.WorkerService.
  grpc::Service* service = nullptr;
};

// The flags of all processes, under "Process". The defaults are what `options`
// holds.
void AddDaemonFlags(Flags* flags, DaemonOptions* options);
// What no flag's type refuses; names the flag.
absl::Status ValidateDaemonOptions(const DaemonOptions& options);

// Owned by main, whose thread calls everything but gate(), state(), SetReady(),
// SetLive(), RequestDrain() and Stop(), which are thread-safe.
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
  // Nobody scrapes any more: what before_scrape looks at may go.
  void StopMetrics() { metrics_server_.reset(); }

  // Everything is warm: listens, with health, reflection and AdminService, logs
  // "listening" and prints on stdout, in one line for programs:
  //   baton <role> grpc=127.0.0.1:PORT http=127.0.0.1:PORT
  // The services are borrowed until Run returns. An error names the flag.
  absl::Status Serve(const std::vector<ServedService>& services);

  // Waits for a signal, RequestDrain() or Stop(), then drains: NOT_SERVING and
  // the gate closed at once; waits for the gate to empty, at most the grace, a
  // second signal ending the wait; then cuts what is left, cancels what does
  // not end by that, and stops. Returns main's exit code: 0. REQUIRES: Serve
  // was OK.
  int Run();

  // Whether the process could do its work now: what health and /readyz say
  // while it serves. True until set.
  void SetReady(bool ready) ABSL_LOCKS_EXCLUDED(ready_mutex_);

  // Whether its work goes on: what liveness and /healthz say; without it the
  // process is not ready either. True until set.
  void SetLive(bool live) ABSL_LOCKS_EXCLUDED(ready_mutex_);

  // Called on Run's thread every second or so, also while it drains.
  void OnTick(std::function<void()> on_tick) { on_tick_ = std::move(on_tick); }
  // As MemoryGuard's, on that thread.
  void OnShed(std::function<uint64_t()> shed) {
    memory_guard_.OnShed(std::move(shed));
  }

  // Called on Run's thread when a drain begins, with the gate closed.
  void OnDrain(std::function<void()> on_drain) {
    on_drain_ = std::move(on_drain);
  }

  // As a first signal would, with this grace (absent: --drain_grace); of a
  // drain that runs already it may only shorten the rest. `begun` is called
  // once it has begun, with the requests inside the gate, here or on Run's
  // thread.
  void RequestDrain(std::optional<absl::Duration> grace,
                    std::function<void(uint64_t)> begun)
      ABSL_LOCKS_EXCLUDED(drain_mutex_);
  void Stop() { RequestDrain({}, {}); }

  int grpc_port() const { return grpc_port_; }
  int metrics_port() const;

 private:
  enum class Event { kSignal, kWoken, kTimeout };
  // Ticks meanwhile, and looks at the memory.
  Event Await(absl::Time deadline);
  // Waits and no more. What has come already is seen after the deadline, too.
  Event Poll(absl::Time deadline);
  void Wake();
  bool IsReady() const ABSL_LOCKS_EXCLUDED(ready_mutex_);
  bool IsLive() const ABSL_LOCKS_EXCLUDED(ready_mutex_);
  void TellHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(ready_mutex_);
  // `to`, and what health says in it.
  void SetState(DaemonState to) ABSL_LOCKS_EXCLUDED(ready_mutex_);
  void Drain();
  // Until it is empty, or drain_by_.
  Event AwaitEmptyGate();
  // Sets drain_by_, if to an earlier time.
  void DrainBy(absl::Time time) ABSL_LOCKS_EXCLUDED(drain_mutex_);
  absl::Time drain_by() const ABSL_LOCKS_EXCLUDED(drain_mutex_);

  const DaemonOptions options_;
  const std::string role_;
  const int signal_fd_;
  const int wake_fd_;
  prometheus::Registry registry_;
  RequestGate gate_;
  MemoryGuard memory_guard_;
  std::atomic<DaemonState> state_{DaemonState::kStarting};
  std::atomic<bool> stop_requested_{false};
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
  std::function<void()> on_drain_;
  std::function<void()> on_tick_;
  absl::Time next_tick_ = absl::InfinitePast();
  // Of the memory guard.
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Time next_look_ = absl::InfinitePast();
  std::atomic<bool> look_now_{false};  // Any thread.
  int grpc_port_ = 0;
  int num_signals_ = 0;
  std::vector<std::string> service_names_;

  // Held while state_ or health changes, so that health tells the newest.
  mutable absl::Mutex ready_mutex_;
  bool ready_ ABSL_GUARDED_BY(ready_mutex_) = true;
  bool live_ ABSL_GUARDED_BY(ready_mutex_) = true;

  mutable absl::Mutex drain_mutex_;
  bool drain_began_ ABSL_GUARDED_BY(drain_mutex_) = false;
  // When what runs is cut.
  absl::Time drain_by_ ABSL_GUARDED_BY(drain_mutex_) = absl::InfiniteFuture();
  // Who is told when it begins.
  std::vector<std::function<void(uint64_t)>> await_drain_
      ABSL_GUARDED_BY(drain_mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_DAEMON_H_
