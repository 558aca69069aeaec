// Everything behind the service in one worker process, from the model's files
// to a warm engine.
#ifndef BATON_SERVER_WORKER_PROCESS_H_
#define BATON_SERVER_WORKER_PROCESS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "comm/epoch_expert_dispatch.h"
#include "comm/expert_boards.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/ucx_transport.h"
#include "engine/expert_placement.h"
#include "engine/llm_engine.h"
#include "engine/model/deepseek_v3_runner.h"
#include "kernels/thread_pool.h"
#include "server/balance_metrics.h"
#include "server/engine_loop.h"
#include "server/expert_balancer.h"
#include "server/group_loop.h"
#include "server/group_membership.h"
#include "server/group_metrics.h"
#include "server/worker_options.h"
#include "server/worker_rank.h"

namespace baton {

// Memory of this process alone, zeroed and backed by real pages.
struct UnmapRegion {
  size_t bytes = 0;
  void operator()(std::byte* region) const;
};
using AnonymousRegion = std::unique_ptr<std::byte, UnmapRegion>;

// What a process tells while it works, on the engines' thread. Any may be
// empty.
struct WorkerObserver {
  std::function<void(const StepStats&)> on_step = {};
  std::function<void(const AbortStats&)> on_abort = {};
  std::function<void(bool)> on_ready = {};  // As of GroupLoopOptions.
  std::function<void()> on_refused = {};    // Likewise.
  std::function<void()> on_left = {};       // Likewise.
  GroupMetrics* group_metrics = nullptr;
  BalanceMetrics* balance_metrics = nullptr;
};

// Owned by main. Destroy it when every request has ended.
class WorkerProcess {
 public:
  // What Start would find wrong with the model's folder, without the weights.
  static absl::Status CheckModel(const WorkerOptions& options);
  // Loads, takes the KV pool, starts the threads, waits for the other processes
  // of its group and warms up. An error names a flag or a file.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(
      const WorkerOptions& options, WorkerObserver observer);

  // As GroupLoop's. REQUIRES: in a group.
  void StartLeaving(absl::Time deadline) {
    group_loop_->StartLeaving(deadline);
  }
  absl::Status refusal() {
    return group_loop_ == nullptr ? absl::OkStatus() : group_loop_->refusal();
  }

  // Of the local ranks.
  std::vector<LLMEngine*> engines() const;
  const Clock& clock() const { return clock_; }
  const ModelRunnerInfo& model() const { return runners_.front()->info(); }
  // UcxTransport's ways; none: unified.
  std::vector<std::string> kv_transports() const;
  // Thread-safe. All 0 where nothing is transferred.
  KvTransferCounters transfer_counters() const {
    return agent_ == nullptr ? KvTransferCounters() : agent_->counters();
  }

 private:
  WorkerProcess() = default;
  absl::Status Load(const WorkerOptions& options);
  absl::Status TakePool(const WorkerOptions& options);
  // The options that the engine works by, with what they leave to measure.
  EngineOptions MakeEngineOptions(const WorkerOptions& options);
  void StartAgent(const WorkerOptions& options);
  absl::Status JoinGroup(const WorkerOptions& options);
  void StartRanks(const WorkerOptions& options, const WorkerObserver& observer);
  void StartLoop(const WorkerOptions& options, WorkerObserver observer);
  void StartGroupLoop(const WorkerOptions& options, WorkerObserver observer);
  // REQUIRES: in a group.
  GroupMembershipOptions MembershipOptions(const WorkerOptions& options) const;
  ExpertBalancerOptions BalancerOptions(const WorkerOptions& options);
  bool in_group() const { return layout_.has_value(); }
  ExpertGroupShape group_shape() const;  // REQUIRES: in a group.
  absl::Status WarmUpFirstRank();

  // In the order of their making; each borrows from those above.
  MonotonicClock clock_;
  CpuContext cpu_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<LoadedDeepSeekV3> weights_;
  std::optional<ExpertLayout> layout_;  // Absent: no group.
  bool loads_experts_ = false;          // Other processes have other experts.
  // Of each local rank, as are rank_pools_ and ranks_; the runners own their
  // dispatches.
  std::vector<EpochExpertDispatch*> dispatches_;
  std::vector<std::unique_ptr<DeepSeekV3Runner>> runners_;
  std::unique_ptr<UcxTransport> transport_;  // Null: unified.
  AnonymousRegion region_;                   // Null: the transport's.
  std::unique_ptr<KvPool> pool_;             // The ranks' one after the other.
  std::vector<KvPool> rank_pools_;
  std::unique_ptr<KvTransferAgent> agent_;  // Null: unified.
  // Null: no group. Devices wake it to their end, so it outlives the ranks.
  std::unique_ptr<GroupMembership> membership_;
  std::vector<std::unique_ptr<WorkerRank>> ranks_;
  std::unique_ptr<EngineLoop> loop_;       // Without a group.
  std::unique_ptr<GroupLoop> group_loop_;  // In one.
};

}  // namespace baton

#endif  // BATON_SERVER_WORKER_PROCESS_H_
