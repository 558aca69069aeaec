// A process of a group as batond makes it, but for the model and the KV's
// transport.
#ifndef BATON_SERVER_GROUP_PROCESS_FOR_TEST_H_
#define BATON_SERVER_GROUP_PROCESS_FOR_TEST_H_

#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/logging.h"
#include "comm/epoch_expert_dispatch.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/kv_transfer_port.h"
#include "comm/transport.h"
#include "server/group_loop.h"
#include "server/group_membership_for_test.h"
#include "server/group_metrics.h"
#include "server/worker_rank.h"
#include "tests/fakes/awaited_answer.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/meeting_model_runner.h"

namespace baton {

inline constexpr uint32_t kBlocksOfRank = 600;
inline constexpr FakeModelRunner::Options kModel = {.max_context_tokens =
                                                        1 << 15};

// Its loop, and requests to it. Owned by the test's thread.
class GroupProcess {
 public:
  GroupProcess(const GroupProcessOptions& options,
               std::unique_ptr<Transport> transport)
      : options_(options),
        membership_(StartMembership(options)),
        transport_(std::move(transport)) {
    TakePool();
    for (uint32_t i = 0; i < kLocalRanks; ++i) AddRank(i);
    const uint32_t first_rank = options.process * kLocalRanks;
    metrics_ = std::make_unique<GroupMetrics>(
        &registry_, "test",
        GroupMetrics::Ranks{.group = options.num_ranks(),
                            .first = first_rank,
                            .local = kLocalRanks});
    loop_ = std::make_unique<GroupLoop>(LoopOptions(), membership_.get(),
                                        loop_ranks_, agent_.get(), &clock_);
    loop_->Start();
  }
  // The requests that are left end.
  ~GroupProcess() { loop_->LeaveGroup(absl::InfinitePast()); }

  GroupLoop& loop() { return *loop_; }
  LLMEngine& engine(uint32_t local_rank) {
    return ranks_[local_rank]->engine();
  }
  Gate& gate(uint32_t local_rank) { return gates_[local_rank]; }
  size_t block_bytes() const { return pool_->block_bytes(); }
  v1::GroupLoad load() const { return metrics_->load(); }
  bool was_refused() const { return was_refused_.load(); }
  // What on_ready was told.
  std::vector<bool> readiness() {
    absl::MutexLock lock(&mutex_);
    return readiness_;
  }

  // Another request each time.
  AwaitedAnswer& Submit(uint32_t local_rank, uint32_t max_tokens,
                        RequestMode mode = RequestMode::kGenerate) {
    const uint64_t number = ++num_requests_;
    GenerationRequest request =
        MakeRequest(number, static_cast<uint32_t>(5 + number % 3), max_tokens);
    request.mode = mode;
    AwaitedAnswer& answer = answers_.emplace_back(request);
    CHECK_OK(engine(local_rank).Submit(std::move(request), &answer));
    return answer;
  }

 private:
  void TakePool() {
    const size_t block_bytes =
        FakeModelRunner(kModel).info().cache.block_bytes();
    const uint32_t num_blocks = kLocalRanks * kBlocksOfRank;
    const auto region = transport_->AllocateRegion(
        KvPool::RegionBytes(num_blocks, block_bytes));
    CHECK_OK(region.status());
    pool_ = std::make_unique<KvPool>(*region, num_blocks, block_bytes);
    agent_ = std::make_unique<KvTransferAgent>(
        KvTransferAgentOptions{.fingerprint = "fake"}, transport_.get(),
        pool_.get(), &clock_, [this](KvTransferEvent event) {
          const uint32_t rank = KvTransferPort::LocalRankOf(event);
          engine(rank).OnTransferEvent(
              KvTransferPort::ToRank(std::move(event)));
        });
  }

  void AddRank(uint32_t i) {
    const ExpertGroupShape shape = MembershipOptions(options_).transport.shape;
    dispatches_.push_back(std::make_unique<EpochExpertDispatch>(
        shape, static_cast<int>(options_.process * kLocalRanks + i)));
    runners_.push_back(std::make_unique<MeetingModelRunner>(
        kModel, shape, dispatches_.back().get(), &gates_.emplace_back()));
    const BlockId first_block(i * kBlocksOfRank);
    pools_.push_back(pool_->Slice(first_block, kBlocksOfRank));
    runners_.back()->BindKvPool(&pools_.back());
    ranks_.push_back(std::make_unique<WorkerRank>(
        EngineOptions{},
        WorkerRank::Parts{
            .runner = runners_.back().get(),
            .pool = &pools_.back(),
            .transfer = {agent_.get(), i, first_block},
            .clock = &clock_,
            .cpu = {.isa = SupportedVectorIsas().back()},
            .observer =
                [this, i](const StepStats& stats) {
                  loop_->OnStepRows(i, stats.expert_rows);
                },
            .on_work = {[](void* membership) {
                          static_cast<GroupMembership*>(membership)->Wake();
                        },
                        membership_.get()}}));
    loop_ranks_.push_back({&ranks_.back()->engine(), dispatches_.back().get()});
  }

  GroupLoopOptions LoopOptions() {
    GroupLoopOptions options;
    options.watchdog = options_.watchdog;
    options.balancer.rebalance.mover.layout = {
        .num_layers = 1,
        .num_experts = kExperts,
        .num_ranks = options_.num_ranks(),
        .slots_per_rank = kSlotsPerRank};
    options.balancer.rebalance.interval = 0;
    options.on_ready = [this](bool ready) {
      absl::MutexLock lock(&mutex_);
      readiness_.push_back(ready);
    };
    options.on_refused = [this] { was_refused_.store(true); };
    options.metrics = metrics_.get();
    return options;
  }

  const GroupProcessOptions options_;
  const MonotonicClock clock_;
  const std::unique_ptr<GroupMembership> membership_;
  prometheus::Registry registry_;
  std::unique_ptr<GroupMetrics> metrics_;
  absl::Mutex mutex_;
  std::vector<bool> readiness_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> was_refused_{false};
  uint64_t num_requests_ = 0;
  std::deque<AwaitedAnswer> answers_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvTransferAgent> agent_;
  std::deque<KvPool> pools_;  // Of each rank.
  std::deque<Gate> gates_;
  std::vector<std::unique_ptr<EpochExpertDispatch>> dispatches_;
  std::vector<std::unique_ptr<MeetingModelRunner>> runners_;
  std::vector<std::unique_ptr<WorkerRank>> ranks_;
  std::vector<GroupLoop::Rank> loop_ranks_;
  std::unique_ptr<GroupLoop> loop_;
};

}  // namespace baton

#endif  // BATON_SERVER_GROUP_PROCESS_FOR_TEST_H_
