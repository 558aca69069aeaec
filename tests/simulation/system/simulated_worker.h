// A worker process of the simulated system: the real engine and transfer agent
// behind simulated calls. It crashes, drains, stands still, and comes back.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_WORKER_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/loopback_transport.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/edge/stream_budget.h"
#include "tests/simulation/system/event_loop.h"
#include "tests/simulation/system/server_stream.h"
#include "tests/simulation/system/simulated_call.h"
#include "tests/simulation/system/worker_shape.h"

namespace baton {

// One thread. The same object over all incarnations of the process.
class SimulatedWorker final {
 public:
  struct Options {
    ProcessId id;
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    WorkerShape shape;
    // Tasks of its device take up to that, and its loop comes as often.
    absl::Duration unit;
    StreamLimits streams;
    // How each request of it ended, in the engine.
    std::function<void(const absl::Status&)> on_outcome;
    // Readers of its streams were too slow: at first, and for too long.
    std::function<void()> on_paused;
    std::function<void()> on_cut;
  };
  struct ProbeAnswer {
    v1::GetWorkerInfoResponse info;
    v1::GetLoadResponse load;
  };

  // Borrows all.
  SimulatedWorker(const Options& options, EventLoop* loop, CallNetwork* calls,
                  LoopbackNetwork* kv_network);
  ~SimulatedWorker();

  // --- Its life.
  void Start();
  // `told`: by its kernel, at once; else its host is gone, too.
  void Crash(bool told);
  // Takes nothing new, cuts what has not ended after the grace, and exits.
  void Drain(absl::Duration grace);
  // Stopped, and then goes on.
  void StandStill(absl::Duration duration);
  void FlipKvBit();  // Somewhere in its pool.
  bool is_up() const { return process_ != nullptr; }
  bool stands_still() const { return loop_->now() < stands_until_; }
  bool is_draining() const;

  // --- What calls bring.
  template <typename Response, typename Request>
  void Accept(const Request& request, StreamStart<Response> start);
  void Abort(const v1::AbortRequest& request);
  // UNAVAILABLE: it does not serve.
  absl::StatusOr<ProbeAnswer> Probe() const;
  // A KV message is on its way to it.
  void Wake();

  // --- What others see of it.
  ProcessId id() const { return options_.id; }
  v1::WorkerRole role() const { return options_.role; }
  // Of the present incarnation's transfers; empty if there is none.
  std::string_view kv_address() const;
  uint64_t num_calls() const;  // That are open.
  bool is_idle() const;        // REQUIRES: is_up(), and so of the next.
  // Dies if its books are wrong, or anything is left of a request.
  void CheckNothingIsLeft() const;
  // Of all incarnations.
  struct StepCounts {
    uint64_t steps = 0;
    uint64_t preemptions = 0;
  };
  StepCounts CountSteps() const;

 private:
  struct Process;  // One incarnation.

  void Turn();
  bool AdvanceEngine();
  void ScheduleTurn(absl::Duration delay);
  void SyncClock();
  void CollectStreams();
  void Cut();
  void End(bool told);
  void TearDown(Process* process);
  static StepCounts CountSteps(const Process& process);

  const Options options_;
  EventLoop* const loop_;
  CallNetwork* const calls_;
  LoopbackNetwork* const kv_network_;

  uint64_t num_incarnations_ = 0;
  std::unique_ptr<Process> process_;
  // Dead, and their peers do not know it yet.
  std::vector<std::unique_ptr<Process>> unnoticed_;
  EventLoop::Timer next_turn_;
  bool turn_is_due_ = false;
  absl::Duration pause_;  // Of its loop, the longer the less there is to do.
  absl::Time stands_until_ = absl::InfinitePast();
  uint64_t num_turns_ = 0;
  StepCounts ended_steps_;  // Of incarnations that have ended.
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_WORKER_H_
