// One simulated system: clients, routers and workers, the networks between
// them, and what goes wrong.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_WORLD_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/loopback_transport.h"
#include "server/text/tokenizer.h"
#include "tests/simulation/system/event_loop.h"
#include "tests/simulation/system/fault_plan.h"
#include "tests/simulation/system/simulated_call.h"
#include "tests/simulation/system/simulated_client.h"
#include "tests/simulation/system/simulated_router.h"
#include "tests/simulation/system/simulated_worker.h"
#include "tests/simulation/system/system_request.h"
#include "tests/simulation/system/system_result.h"

namespace baton {

// What a system is made of; from a seed.
struct SystemOptions {
  uint64_t seed = 0;
  CallNetwork::Options calls;
  // Ids and callbacks are the world's.
  std::vector<SimulatedWorker::Options> workers;
  uint32_t num_routers = 1;
  uint32_t num_client_processes = 1;
  SimulatedRouter::Options router;
  SystemRequestOptions requests;
  absl::Duration longest_arrival_gap;
  uint32_t max_live_requests = 1;
  FaultPlanOptions faults;
  // From the last fault to the end of all requests, at most.
  absl::Duration patience;
  // No queue can be full.
  bool has_room = false;
  bool corrupts_kv = false;
};

SystemOptions RandomSystem(uint64_t seed);

// One thread. Dies of whatever is wrong.
class SystemWorld final {
 public:
  SystemWorld(const SystemOptions& options, const Tokenizer* tokenizer,
              bool trace);
  ~SystemWorld();

  // Until so much has happened; then without faults until all is idle.
  void Run(uint64_t events);

  SystemResult result() const;

 private:
  void MakeWorkers();
  void MakeRouters();
  void Step();
  void ArriveLater();
  void Arrive();
  void JudgeEnded();
  void Judge(const SimulatedClient& client);
  void OnOutcome(v1::WorkerRole role, const absl::Status& status);
  bool IsQuiet();
  std::string WhatIsLeft();
  void CheckNothingIsLeft();

  const SystemOptions options_;
  const Tokenizer* const tokenizer_;
  EventLoop loop_;
  LoopbackNetwork kv_network_;
  CallNetwork calls_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::vector<std::unique_ptr<SimulatedRouter>> routers_;
  std::vector<ProcessId> client_processes_;
  std::unique_ptr<FaultPlan> faults_;
  bool arrivals_ = true;
  bool kv_was_lost_ = false;
  uint64_t num_requests_ = 0;
  std::vector<std::unique_ptr<SimulatedClient>> live_;
  // Judged; timers may still name them.
  std::vector<std::unique_ptr<SimulatedClient>> ended_;
  SystemResult result_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SYSTEM_WORLD_H_
