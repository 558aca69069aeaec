// Which faults a simulated system has, and what each of them does to it.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_FAULT_PLAN_H_
#define BATON_TESTS_SIMULATION_SYSTEM_FAULT_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/loopback_transport.h"
#include "tests/simulation/system/event_loop.h"
#include "tests/simulation/system/fault_kind.h"
#include "tests/simulation/system/simulated_call.h"
#include "tests/simulation/system/simulated_router.h"
#include "tests/simulation/system/simulated_worker.h"

namespace baton {

// What faults are done to; all borrowed.
struct SystemParts {
  EventLoop* loop = nullptr;
  CallNetwork* calls = nullptr;
  std::vector<SimulatedWorker*> workers;
  std::vector<SimulatedRouter*> routers;
  std::vector<ProcessId> clients;
};

struct FaultPlanOptions {
  // Those that happen at a time of their own.
  std::vector<FaultKind> kinds;
  absl::Duration shortest_pause;  // Between two of them.
  absl::Duration longest_pause;
  // How long things are down, cut off or stand still, at most.
  absl::Duration longest_outage;
  absl::Duration drain_grace;
  // Of so many KV messages one is lost, repeated or late; 0: none.
  uint32_t kv_loss_one_in = 0;
  uint32_t kv_repeat_one_in = 0;
  uint32_t kv_delay_one_in = 0;
};

// One thread.
class FaultPlan final {
 public:
  FaultPlan(const FaultPlanOptions& options, const SystemParts& parts)
      : options_(options), parts_(parts), loop_(*parts.loop) {}

  void Start();
  // No more of them; and what is down, cut off or drained is well again soon.
  void Stop();
  // The network's; it must not call back.
  LoopbackFate FateOf(std::string_view from, std::string_view to,
                      std::string_view message);

  void Count(FaultKind kind) { ++CountOf(kind, &counts_); }
  const FaultCounts& counts() const { return counts_; }
  // Requests may have failed by them.
  bool any_happened() const { return any_happened_; }

 private:
  using Link = std::pair<ProcessId, ProcessId>;

  void ScheduleNext();
  // False: there was nothing that it could have happened to.
  bool Happen(FaultKind kind);
  bool CrashOne(v1::WorkerRole role);
  bool LoseHost();
  bool DrainOne(absl::Duration grace);
  bool StopOne();
  bool CrashRouter();
  bool BreakLink(const std::vector<ProcessId>& others);
  bool Block(bool both_ways);
  bool CutKv();
  void CrashForPull(SimulatedWorker* worker, FaultKind kind);
  void OnKvMessage(SimulatedWorker* from, SimulatedWorker* to,
                   std::string_view message);

  void RestartLater(SimulatedWorker* worker);
  void RestartIfDown(SimulatedWorker* worker);
  absl::Duration Outage();
  SimulatedWorker* AnyWorker(std::optional<v1::WorkerRole> role, bool busy);
  SimulatedRouter* AnyRouter();
  SimulatedWorker* WorkerAt(std::string_view kv_address) const;

  const FaultPlanOptions options_;
  const SystemParts parts_;
  EventLoop& loop_;
  FaultCounts counts_ = {};
  bool any_happened_ = false;
  bool stopped_ = false;
  std::optional<FaultKind> pull_crash_;  // That waits for its pull.
  std::vector<Link> blocked_;
  // Of KV: one worker's messages to another.
  std::vector<std::pair<const SimulatedWorker*, const SimulatedWorker*>>
      kv_blocked_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_FAULT_PLAN_H_
