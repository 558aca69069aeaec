// An expert-parallel group of the demo model on this host, in one process or
// several: batond's own loop, engines and exchange, without its service.
#ifndef BATON_BENCH_GROUP_RUN_H_
#define BATON_BENCH_GROUP_RUN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "bench/host_members.h"
#include "comm/group_barrier.h"
#include "comm/step_vote.h"
#include "comm/ucx_transport.h"

namespace baton {

struct GroupRunOptions {
  std::string model;
  uint32_t ep_size = 8;
  uint32_t processes = 1;
  UcxMode transport = UcxMode::kAuto;
  // Each rank decodes so many sequences together, all of the same lengths.
  uint32_t batch = 1;
  uint32_t prompt_tokens = 32;
  uint32_t max_tokens = 200;
  uint32_t pipeline_depth = 2;
  std::optional<uint32_t> num_redundant_experts;
  uint32_t eplb_interval = 0;  // 0: off.
  uint32_t eplb_window = 1000;

  uint32_t local_ranks() const { return ep_size / processes; }
  size_t num_requests() const { return size_t{ep_size} * batch; }
};

// One step as a process launched it; sums are of its start up to here, of all
// its ranks, in seconds.
struct GroupStepRecord {
  double time = 0;  // Of the launch, by a clock that all processes share.
  VotedStep type = VotedStep::kNone;
  uint32_t empty_ranks = 0;
  double vote_wait = 0;     // Of this step.
  double exposed_wait = 0;  // Likewise.
  // CPU time.
  double process_cpu = 0;
  double engine_cpu = 0;  // Of the thread that turns the engines.
  double commit_cpu = 0;  // Part of it: of each rank but the first.
  double launch_cpu = 0;  // Likewise: decide, plan, launch.
  double device_cpu = 0;
  double exchange_cpu = 0;  // Part of it, as is the next.
  double experts_cpu = 0;
  double barriers = 0;     // Their number, of one rank.
  double device_idle = 0;  // Of the clock, by StepStats.
  // Of experts, by the newest step before; where they are balanced.
  double placement_version = 0;
};

// What the processes of a run write into memory that they share.
class GroupRunRecords {
 public:
  explicit GroupRunRecords(const GroupRunOptions& options)
      : max_steps_(options.max_tokens + kStepsOfPrompts),
        max_tokens_(options.max_tokens),
        steps_(options.processes * max_steps_),
        token_times_(options.num_requests() * max_tokens_),
        start_state_(1),
        start_arrivals_(options.processes) {}

  // Waits for the other processes; false: they don't come.
  bool ArriveAtStart(uint32_t process) const {
    GroupBarrier start({.deadline = absl::Minutes(1)},
                       start_state_.values().data(), start_arrivals_.values());
    return start.Arrive(static_cast<int>(process));
  }

  // One process's, in order; behind the last one there are some of type kNone.
  std::span<GroupStepRecord> steps(uint32_t process) const {
    return steps_.values().subspan(process * max_steps_, max_steps_);
  }
  // Of each token of a request, when it was handed out; rank by rank.
  std::span<double> token_times(size_t request) const {
    return token_times_.values().subspan(request * max_tokens_, max_tokens_);
  }

 private:
  static constexpr size_t kStepsOfPrompts = 256;
  const size_t max_steps_;
  const size_t max_tokens_;
  const SharedArray<GroupStepRecord> steps_;
  const SharedArray<double> token_times_;
  const SharedArray<GroupBarrierState> start_state_;
  const SharedArray<GroupBarrierArrivals> start_arrivals_;
};

// Starts the processes; each loads, joins, decodes the batch of each of its
// ranks, and leaves. Dies of any error.
// REQUIRES: this process has no other thread.
void RunGroup(const GroupRunOptions& options, const GroupRunRecords& records);

}  // namespace baton

#endif  // BATON_BENCH_GROUP_RUN_H_
