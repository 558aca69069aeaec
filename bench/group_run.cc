#include "bench/group_run.h"

#include <prometheus/registry.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <latch>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "bench/timed_expert_dispatch.h"
#include "comm/epoch_expert_dispatch.h"
#include "comm/expert_boards.h"
#include "engine/cache_spec.h"
#include "engine/engine_options.h"
#include "engine/expert_placement.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/token_sink.h"
#include "kernels/thread_pool.h"
#include "server/balance_metrics.h"
#include "server/cli/local_group.h"
#include "server/expert_balancer.h"
#include "server/group_loop.h"
#include "server/group_membership.h"
#include "server/worker_rank.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

constexpr uint32_t kFirstPlainToken = 16;  // Below are special tokens.

double SecondsOf(clockid_t clock) {
  timespec now;
  CHECK_EQ(clock_gettime(clock, &now), 0);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(now));
}

double PlacementVersion(const prometheus::Registry& registry) {
  const std::vector<prometheus::MetricFamily> families = registry.Collect();
  const auto version = std::ranges::find(
      families, "baton_expert_placement_version",
      [](const prometheus::MetricFamily& family) { return family.name; });
  CHECK(version != families.end());
  return version->metric.at(0).gauge.value;
}

// Of a request that must end well.
class TimeSink final : public TokenSink {
 public:
  TimeSink(std::span<double> times, std::latch* ends)
      : times_(times), ends_(ends) {}
  void OnKvHandle(const KvHandle&) override {}
  void OnProgress(uint32_t) override {}
  void OnPromptLogprobs(const ScoredTokens&) override {}
  void OnTokens(const ScoredTokens& scored) override {
    const double now = SecondsOf(CLOCK_MONOTONIC);
    for (size_t i = 0; i < scored.tokens.size(); ++i) {
      times_[scored.first_index + i] = now;
    }
  }
  void OnFinished(const GenerationOutcome& outcome) override {
    CHECK_OK(outcome.status);
    ends_->count_down();
  }

 private:
  const std::span<double> times_;
  std::latch* const ends_;
};

class GroupProcess {
 public:
  // Borrows the records.
  GroupProcess(const GroupRunOptions& options, const std::string& leader,
               uint32_t process, const GroupRunRecords* records)
      : options_(options),
        leader_(leader),
        process_(process),
        records_(records) {
    engine_options_.max_running_requests = options.batch;
    engine_options_.pipeline_depth = options.pipeline_depth;
    Load();
    JoinGroup();
    for (uint32_t i = 0; i < options.local_ranks(); ++i) AddRank(i);
    StartLoop();
  }

  void Decode();

 private:
  // What belongs to a local rank, in the order of its making.
  struct Rank {
    DeviceCpu cpu;
    EpochExpertDispatch* dispatch = nullptr;  // The runner's.
    std::unique_ptr<DeepSeekV3Runner> runner;
    std::unique_ptr<HeapKvPool> pool;
    std::unique_ptr<WorkerRank> rank;
  };

  uint32_t first_rank() const { return process_ * options_.local_ranks(); }
  void Load();
  ExpertGroupShape Shape() const;
  void AddRank(uint32_t local_rank);
  void JoinGroup();
  void StartLoop();
  GroupMembershipOptions MembershipOptions() const;
  ExpertBalancerOptions BalancerOptions();
  GenerationRequest MakeRequest(uint32_t number) const;
  void OnStep(const GroupStepStats& stats);
  double EngineCpuSinceLast();

  const GroupRunOptions options_;
  const std::string leader_;
  const uint32_t process_;
  const GroupRunRecords* const records_;
  const MonotonicClock clock_;
  prometheus::Registry registry_;
  BalanceMetrics balance_metrics_{&registry_, "decode"};
  EngineOptions engine_options_;
  CpuContext cpu_;
  ExpertLayout layout_;
  std::unique_ptr<LoadedDeepSeekV3> weights_;
  std::unique_ptr<GroupMembership> membership_;
  std::deque<Rank> ranks_;
  // The engines' thread's.
  size_t num_steps_ = 0;
  GroupStepRecord sums_;
  double engine_cpu_ = 0;
  bool commits_ = false;  // A rank's step, since the newest launch.
  std::unique_ptr<GroupLoop> loop_;
};

// As WorkerProcess does.
void GroupProcess::Load() {
  LoadOptions load = {
      .folder = options_.model,
      .max_rows = static_cast<int>(engine_options_.max_rows()),
      .max_logits_rows = static_cast<int>(engine_options_.max_logits_rows())};
  const auto info = LoadedDeepSeekV3::ReadInfo(load);
  CHECK_OK(info.status());
  const auto layout =
      MakeExpertLayout(info->num_expert_layers, info->num_experts,
                       options_.ep_size, options_.num_redundant_experts);
  CHECK_OK(layout.status());
  layout_ = *layout;
  if (options_.processes > 1) {
    load.resident_experts = ExpertsOfRanks(
        ExpertPlacement(layout_), first_rank(), options_.local_ranks());
  }
  ThreadPool packers({.num_threads = 1, .pin_threads = false});
  cpu_ = {.isa = SupportedVectorIsas().back(), .threads = &packers};
  auto weights = LoadedDeepSeekV3::Load(load, cpu_);
  CHECK_OK(weights.status());
  weights_ = *std::move(weights);
  cpu_.threads = nullptr;  // Each rank has its device's thread alone.
}

ExpertGroupShape GroupProcess::Shape() const {
  return {.experts = weights_->expert_shape(),
          .num_ranks = static_cast<int>(layout_.num_ranks),
          .slots_per_rank = static_cast<int>(layout_.slots_per_rank)};
}

void GroupProcess::AddRank(uint32_t local_rank) {
  Rank& rank = ranks_.emplace_back();
  auto dispatch = std::make_unique<EpochExpertDispatch>(
      Shape(), static_cast<int>(first_rank() + local_rank));
  rank.dispatch = dispatch.get();
  rank.runner = std::make_unique<DeepSeekV3Runner>(
      weights_.get(), cpu_,
      std::make_unique<TimedExpertDispatch>(std::move(dispatch), &rank.cpu));
  const uint32_t blocks =
      CacheSpec::BlocksFor(options_.prompt_tokens + options_.max_tokens) + 1;
  rank.pool = std::make_unique<HeapKvPool>(
      options_.batch * blocks, weights_->info().cache.block_bytes());
  rank.runner->BindKvPool(rank.pool->get());
  const auto on_step = [this, local_rank](const StepStats& stats) {
    sums_.device_idle += absl::ToDoubleSeconds(stats.device_idle);
    // Before the first one, turns have looked for it in vain.
    const double cpu = EngineCpuSinceLast();
    sums_.commit_cpu += std::exchange(commits_, true) ? cpu : 0;
    loop_->OnStepRows(local_rank, stats.expert_rows);
  };
  const DeviceTask on_work = {
      [](void* membership) {
        static_cast<GroupMembership*>(membership)->Wake();
      },
      membership_.get()};
  rank.rank = std::make_unique<WorkerRank>(
      engine_options_, WorkerRank::Parts{.runner = rank.runner.get(),
                                         .pool = rank.pool->get(),
                                         .clock = &clock_,
                                         .cpu = cpu_,
                                         .observer = on_step,
                                         .on_work = on_work});
}

GroupMembershipOptions GroupProcess::MembershipOptions() const {
  return {
      .formation = {.self = {.fingerprint = weights_->info().fingerprint,
                             .ep_size = options_.ep_size,
                             .member = {.rank_offset = first_rank(),
                                        .local_ranks = options_.local_ranks()}},
                    .leader_address = options_.processes == 1 ? "" : leader_},
      .transport = {.shape = Shape(),
                    .local_ranks = options_.local_ranks(),
                    .process = process_,
                    .mode = options_.transport,
                    .network_devices = "lo"}};
}

ExpertBalancerOptions GroupProcess::BalancerOptions() {
  ExpertBalancerOptions balancer;
  balancer.rebalance.mover.layout = layout_;
  balancer.rebalance.interval = options_.eplb_interval;
  balancer.rebalance.window_steps = options_.eplb_window;
  const bool loads = options_.processes > 1;
  balancer.load_expert = [this, loads](uint32_t layer, uint32_t expert) {
    return loads ? weights_->AddExpert(layer, expert) : absl::OkStatus();
  };
  balancer.drop_expert = [this, loads](uint32_t layer, uint32_t expert) {
    if (loads) weights_->RemoveExpert(layer, expert);
  };
  return balancer;
}

void GroupProcess::JoinGroup() {
  auto membership = GroupMembership::Start(MembershipOptions());
  CHECK_OK(membership.status());
  membership_ = *std::move(membership);
}

void GroupProcess::StartLoop() {
  std::vector<GroupLoop::Rank> ranks;
  for (Rank& rank : ranks_) {
    ranks.push_back({&rank.rank->engine(), rank.dispatch});
  }
  loop_ = std::make_unique<GroupLoop>(
      GroupLoopOptions{.stepper = {.vote = {},
                                   .observer =
                                       [this](const GroupStepStats& stats) {
                                         OnStep(stats);
                                       }},
                       .balancer = BalancerOptions(),
                       .balance_metrics = &balance_metrics_},
      membership_.get(), std::move(ranks), nullptr, &clock_);
  loop_->Start();
}

double GroupProcess::EngineCpuSinceLast() {
  const double last =
      std::exchange(engine_cpu_, SecondsOf(CLOCK_THREAD_CPUTIME_ID));
  return engine_cpu_ - last;
}

void GroupProcess::OnStep(const GroupStepStats& stats) {
  const std::span<GroupStepRecord> records = records_->steps(process_);
  const bool is_full = num_steps_ + 1 == records.size();
  if (stats.type == VotedStep::kNone || is_full) return;
  sums_.launch_cpu += EngineCpuSinceLast();
  commits_ = false;
  GroupStepRecord record = sums_;
  record.time = SecondsOf(CLOCK_MONOTONIC);
  record.type = stats.type;
  record.empty_ranks = stats.empty_ranks;
  record.vote_wait = absl::ToDoubleSeconds(stats.vote_wait);
  record.exposed_wait = absl::ToDoubleSeconds(stats.exposed_wait);
  record.process_cpu = SecondsOf(CLOCK_PROCESS_CPUTIME_ID);
  record.engine_cpu = engine_cpu_;
  for (const Rank& rank : ranks_) {
    record.device_cpu += 1e-9 * static_cast<double>(rank.cpu.all.load());
    record.exchange_cpu += 1e-9 * static_cast<double>(rank.cpu.exchange.load());
    record.experts_cpu += 1e-9 * static_cast<double>(rank.cpu.experts.load());
  }
  record.barriers = static_cast<double>(ranks_.front().cpu.barriers.load());
  if (options_.eplb_interval > 0) {
    record.placement_version = PlacementVersion(registry_);
  }
  records[num_steps_++] = record;
}

GenerationRequest GroupProcess::MakeRequest(uint32_t number) const {
  std::mt19937_64 random(number);
  std::uniform_int_distribution<uint32_t> draw(kFirstPlainToken,
                                               weights_->info().vocab_size - 1);
  GenerationRequest request;
  request.id = {.router_nonce = 1, .counter = number};
  for (uint32_t i = 0; i < options_.prompt_tokens; ++i) {
    request.token_ids.push_back(draw(random));
  }
  request.original_prompt_tokens = options_.prompt_tokens;
  request.sampling.temperature = 0;
  request.max_tokens = options_.max_tokens;
  return request;
}

void GroupProcess::Decode() {
  CHECK_OK(loop_->AwaitEpoch());
  CHECK(records_->ArriveAtStart(process_));
  const uint32_t num_requests = options_.local_ranks() * options_.batch;
  std::latch ends(num_requests);
  std::deque<TimeSink> sinks;
  for (uint32_t i = 0; i < num_requests; ++i) {
    const uint32_t number = first_rank() * options_.batch + i;
    sinks.emplace_back(records_->token_times(number), &ends);
    LLMEngine& engine = ranks_[i / options_.batch].rank->engine();
    CHECK_OK(engine.Submit(MakeRequest(number), &sinks.back()));
  }
  ends.wait();
  loop_->LeaveGroup(clock_.Now() + absl::Seconds(10));
}

}  // namespace

void RunGroup(const GroupRunOptions& options, const GroupRunRecords& records) {
  const auto port = ReservedPort::Find();
  CHECK_OK(port.status());
  const std::string leader = (*port)->endpoint();
  RunMembers(MemberKind::kProcess, static_cast<int>(options.processes),
             [&](int process) {
               GroupProcess(options, leader, static_cast<uint32_t>(process),
                            &records)
                   .Decode();
             });
}

}  // namespace baton
