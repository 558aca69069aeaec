#include <algorithm>
#include <array>
#include <vector>

#include "tests/simulation/system/system_world.h"

namespace baton {
namespace {

using absl::Milliseconds;

// Of pools that run out.
constexpr uint32_t kFewBlocks = 6;

void SetEngine(Dice& dice, WorkerShape* shape) {
  shape->max_running_requests = dice.Between(1, 8);
  shape->max_waiting_requests = dice.Between(6, 16);
  shape->max_chunk_tokens =
      dice.OneIn(4) ? dice.Between(1, 8) : dice.Between(8, 130);
  shape->max_batched_tokens = shape->max_chunk_tokens + dice.Between(0, 90);
  shape->decode_steps_per_prefill = dice.Between(1, 3);
  shape->pipeline_depth = dice.Between(1, kShapeMaxDepth);
}

void SetTransfer(Dice& dice, WorkerShape* shape) {
  shape->maps_regions = dice.OneIn(2);
  shape->lease = Milliseconds(dice.OneIn(3) ? dice.Between(20, 100)
                                            : dice.Between(200, 3000));
  shape->import_timeout = Milliseconds(dice.Between(100, 3000));
  shape->refresh_interval =
      std::min(shape->lease, shape->import_timeout) / dice.Between(3, 8);
  shape->drain_timeout = Milliseconds(dice.Between(20, 200));
  shape->max_blocks_in_flight = dice.Between(1, 8);
}

std::vector<v1::WorkerRole> RandomRoles(Dice& dice) {
  constexpr v1::WorkerRole kP = v1::WORKER_ROLE_PREFILL;
  constexpr v1::WorkerRole kD = v1::WORKER_ROLE_DECODE;
  constexpr v1::WorkerRole kU = v1::WORKER_ROLE_UNIFIED;
  switch (dice.Between(0, 6)) {
    case 0:
      return {kU};
    case 1:
      return {kU, kU};
    case 2:
      return {kP, kD};
    case 3:
      return {kP, kD, kD};
    case 4:
      return {kP, kP, kD};
    case 5:
      return {kP, kD, kU};
    default:
      return {kP, kP, kD, kD};
  }
}

void AddWorkers(Dice& dice, SystemOptions* system) {
  WorkerShape common;
  // The tokenizer's first are special ones, then letters.
  common.model = {.vocab_size = dice.Between(24, 64),
                  .max_context_tokens = dice.Between(60, 200),
                  .right_drafts = dice.OneIn(4) ? 256 : dice.Between(0, 256)};
  if (dice.OneIn(2)) common.num_draft_tokens = dice.Between(1, kShapeMaxDrafts);
  SetTransfer(dice, &common);
  const bool is_tight = !system->has_room && dice.OneIn(3);
  for (const v1::WorkerRole role : RandomRoles(dice)) {
    SimulatedWorker::Options worker;
    worker.role = role;
    worker.unit = absl::Microseconds(dice.Between(100, 1000));
    worker.shape = common;
    SetEngine(dice, &worker.shape);
    worker.shape.num_blocks = dice.Between(8, 40);
    if (is_tight) {
      worker.shape.num_blocks = dice.Between(3, kFewBlocks - 1);
      worker.shape.max_running_requests = dice.Between(4, 8);
    }
    if (system->has_room) worker.shape.max_waiting_requests = 1024;
    system->workers.push_back(worker);
  }
}

void SetRequests(Dice& dice, SystemOptions* system) {
  SystemRequestOptions& requests = system->requests;
  requests.model = system->workers.front().shape.model;
  uint32_t& context = requests.model.max_context_tokens;
  requests.max_samples = dice.Between(1, 5);
  bool is_tight = false;
  for (const SimulatedWorker::Options& worker : system->workers) {
    is_tight |= worker.shape.num_blocks < kFewBlocks;
    context = std::min(context, worker.shape.num_blocks * kShapeBlockTokens);
  }
  requests.max_prompt_tokens =
      std::min(dice.OneIn(3) ? 20u : 150u, context - 1);
  requests.max_tokens =
      dice.OneIn(4) ? dice.Between(50, 150) : dice.Between(2, 50);
  if (is_tight) {  // Short prompts get in, and long answers take the rest.
    requests.max_prompt_tokens = std::min(requests.max_prompt_tokens, 60u);
    requests.max_tokens = dice.Between(80, 150);
  }
  requests.cancels = dice.OneIn(3);
  requests.has_deadlines = dice.OneIn(3);
  requests.reads_slowly = dice.OneIn(4);
  requests.unit = Milliseconds(1);
}

void SetRouter(Dice& dice, SystemOptions* system) {
  SimulatedRouter::Options& router = system->router;
  constexpr std::array<const char*, 4> kPolicies = {
      "least_loaded", "round_robin", "power_of_two", "prefix_affinity"};
  router.policy = kPolicies[dice.Between(0, 3)];
  router.ejection.failures_in_a_row = dice.Between(0, 5);
  router.ejection.first_ejection = Milliseconds(dice.Between(10, 1000));
  router.ejection.max_ejection = absl::Seconds(2);
  router.retry_budget.min_retries = dice.OneIn(2) ? 100 : dice.Between(0, 5);
  router.retry_budget.min_resumes = dice.OneIn(2) ? 100 : dice.Between(0, 5);
  if (!system->has_room) {
    router.admission = {.max_concurrent_requests = dice.Between(1, 20),
                        .max_queued_requests = dice.Between(0, 10)};
  }
  router.max_retries = dice.OneIn(4) ? dice.Between(0, 1) : dice.Between(2, 6);
  router.worker_wait = Milliseconds(dice.OneIn(4) ? 0 : dice.Between(50, 5000));
  router.release_grace = Milliseconds(dice.Between(5, 1000));
  router.probe_interval = Milliseconds(dice.Between(50, 1000));
  router.probe_retry = Milliseconds(dice.Between(5, 50));
  router.probe_timeout = Milliseconds(dice.Between(50, 1000));
  router.vocab_size = system->requests.model.vocab_size;
}

void SetStreams(Dice& dice, SystemOptions* system) {
  if (!system->requests.reads_slowly) return;
  StreamLimits& clients = system->router.streams;
  clients.pause_bytes = dice.Between(100, 2000);
  clients.resume_bytes = dice.Between(0, 99);
  clients.max_bytes = dice.Between(1000, 20'000);
  clients.slow_reader_timeout = Milliseconds(dice.Between(50, 1000));
  // A router that waits for its client does not read.
  const bool cuts_routers = dice.OneIn(2);
  for (SimulatedWorker::Options& worker : system->workers) {
    worker.streams.pause_bytes = dice.Between(100, 2000);
    worker.streams.resume_bytes = dice.Between(0, 99);
    if (!cuts_routers) continue;
    worker.streams.max_bytes = dice.Between(1000, 50'000);
    worker.streams.slow_reader_timeout = Milliseconds(dice.Between(20, 400));
  }
}

void SetFaults(Dice& dice, SystemOptions* system) {
  FaultPlanOptions& faults = system->faults;
  faults.shortest_pause = Milliseconds(1);
  faults.longest_pause = Milliseconds(dice.Between(10, 400));
  faults.longest_outage = Milliseconds(dice.Between(5, 1500));
  faults.drain_grace = absl::Seconds(10);
  // Few kinds a system: of many each hides the others.
  const uint32_t num_kinds = dice.Between(0, 4);
  for (uint32_t i = 0; i < num_kinds; ++i) {
    faults.kinds.push_back(static_cast<FaultKind>(
        dice.Between(0, static_cast<uint32_t>(FaultKind::kKvPartition))));
  }
  const auto rate = [&dice] { return dice.OneIn(3) ? dice.Between(2, 60) : 0; };
  faults.kv_loss_one_in = rate();
  faults.kv_repeat_one_in = rate();
  faults.kv_delay_one_in = rate();
}

}  // namespace

SystemOptions RandomSystem(uint64_t seed) {
  Dice dice(seed);
  SystemOptions system;
  system.seed = seed;
  system.has_room = dice.OneIn(4);
  system.calls = {.shortest_delay = absl::Microseconds(dice.Between(20, 200)),
                  .longest_delay = absl::Microseconds(dice.Between(200, 5000)),
                  .keepalive = Milliseconds(dice.Between(50, 1000))};
  AddWorkers(dice, &system);
  SetRequests(dice, &system);
  SetRouter(dice, &system);
  SetStreams(dice, &system);
  SetFaults(dice, &system);
  system.num_routers = dice.OneIn(4) ? 2 : 1;
  system.num_client_processes = dice.Between(1, 3);
  system.longest_arrival_gap = Milliseconds(dice.Between(2, 40));
  system.max_live_requests = dice.Between(2, 24);
  system.patience = absl::Seconds(30);
  return system;
}

}  // namespace baton
