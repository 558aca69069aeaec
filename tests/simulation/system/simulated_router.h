// A router process of the simulated system: the real admission, pool of workers
// and policies, and Generations over simulated calls.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_ROUTER_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_ROUTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/edge/stream_budget.h"
#include "server/router/admission.h"
#include "server/router/attempt.h"
#include "server/router/outlier_ejection.h"
#include "server/router/retry_budget.h"
#include "server/router/validate.h"
#include "server/router/worker_pool.h"
#include "server/router/worker_state.h"
#include "server/text/tokenizer.h"
#include "tests/simulation/system/event_loop.h"
#include "tests/simulation/system/process_streams.h"
#include "tests/simulation/system/server_stream.h"
#include "tests/simulation/system/simulated_call.h"
#include "tests/simulation/system/simulated_worker.h"

namespace baton {

class RouterCall;

// One thread.
class SimulatedRouter final {
 public:
  struct Options {
    ProcessId id;
    std::string policy;
    Admission::Options admission;
    OutlierEjection::Options ejection;
    RetryBudget::Options retry_budget;
    uint32_t max_retries = 2;
    absl::Duration worker_wait;
    absl::Duration release_grace;
    absl::Duration probe_interval;
    absl::Duration probe_retry;
    absl::Duration probe_timeout;
    StreamLimits streams;
    const Tokenizer* tokenizer = nullptr;  // Borrowed.
    uint32_t vocab_size = 0;               // The workers' models'.
  };
  // The client's end of a call to a worker.
  template <typename Response>
  struct WorkerStreamEnd {
    std::function<void(Response*)> on_message;
    SimulatedCall::OnEnd on_end;
  };

  // Borrows all. The i-th worker is WorkerId(i) of its pool.
  SimulatedRouter(const Options& options, EventLoop* loop, CallNetwork* calls,
                  std::vector<SimulatedWorker*> workers);
  ~SimulatedRouter();

  // --- Its life.
  void Start();
  void Crash();
  // For good: what waits for a worker that is away waits in vain.
  void StopProbing();
  bool is_up() const { return process_ != nullptr; }

  // --- What calls bring.
  void Accept(GenerationPlan plan, StreamStart<v1::GenerateResponse> client);

  // --- For its calls.
  const Options& options() const { return options_; }
  EventLoop& loop() { return *loop_; }
  uint64_t nonce() const;
  uint64_t NextCounter();
  Admission& admission();
  WorkerPool& pool();
  template <typename Response, typename Request>
  std::shared_ptr<SimulatedCall> CallWorker(WorkerId worker, Request request,
                                            absl::Time deadline,
                                            WorkerStreamEnd<Response> end);
  void AbortAtWorker(WorkerId worker, const v1::AbortRequest& request);
  void OnSuspect(WorkerId worker);
  // What all requests have in common; not OK: there are too many of them.
  absl::Status TakeRetry(std::string_view reason, AttemptCause cause,
                         bool resumes);
  RetryBudget& retry_budget();
  const std::shared_ptr<ProcessStreams>& streams();
  void CountPause() { ++num_pauses_; }

  // --- What others see of it.
  ProcessId id() const { return options_.id; }
  // Drops the calls that are over; how many are not.
  size_t CollectCalls();
  const std::set<std::string>& retry_reasons() const { return retry_reasons_; }
  // For clients that fell behind.
  uint64_t num_pauses() const { return num_pauses_; }

 private:
  struct Prober {
    bool waits_for_answer = false;
    bool is_due = false;  // As soon as the answer is there.
    EventLoop::Timer next;
  };
  struct Process;  // One incarnation.

  void ProbeAfter(WorkerId worker, absl::Duration delay);
  void Probe(WorkerId worker);
  void OnProbeEnd(WorkerId worker, const absl::Status& status,
                  const std::optional<SimulatedWorker::ProbeAnswer>& answer);

  const Options options_;
  EventLoop* const loop_;
  CallNetwork* const calls_;
  const std::vector<SimulatedWorker*> workers_;
  uint64_t num_incarnations_ = 0;
  uint64_t num_pauses_ = 0;
  bool probes_ = true;
  std::unique_ptr<Process> process_;
  std::set<std::string> retry_reasons_;  // That ever were.
};

template <typename Response, typename Request>
std::shared_ptr<SimulatedCall> SimulatedRouter::CallWorker(
    WorkerId id, Request request, absl::Time deadline,
    WorkerStreamEnd<Response> end) {
  SimulatedWorker* const worker = workers_[id.value()];
  return calls_->Begin(
      options_.id, worker->id(),
      [worker, request = std::move(request),
       on_message = std::move(end.on_message)](SimulatedCall* call) {
        worker->Accept<Response>(request, {call, on_message});
      },
      deadline, std::move(end.on_end));
}

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_ROUTER_H_
