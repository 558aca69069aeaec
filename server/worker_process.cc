#include "server/worker_process.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/cache_spec.h"
#include "server/decode_curve.h"
#include "server/kv_pool_size.h"
#include "server/warm_up.h"

namespace baton {
namespace {

constexpr absl::Duration kWarmUpTimeout = absl::Minutes(5);

int NumCpus() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    return CPU_COUNT(&allowed);
  }
  // The kernel's sets are larger than ours.
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// The flag that sized the pool.
const char* SizeFlag(const WorkerOptions& options) {
  return options.kv_blocks.has_value() ? "kv_blocks" : "kv_cache_bytes";
}

// For as many requests as may run, each at half of the longest context; for one
// at all of it.
uint32_t UsefulBlocks(const WorkerOptions& options,
                      const ModelRunnerInfo& model) {
  const uint64_t blocks =
      uint64_t{CacheSpec::BlocksFor(model.max_context_tokens)} *
      std::max<uint64_t>(options.engine.max_running_requests, 2) / 2;
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, 1u << 31));
}

LoadOptions ModelOptions(const WorkerOptions& options) {
  return {.folder = options.model,
          .weights = options.weights,
          .cache_dtype = options.cache_dtype,
          .numerics = options.numerics,
          .max_rows = static_cast<int>(options.engine.max_rows()),
          .max_logits_rows = static_cast<int>(options.engine.max_logits_rows()),
          .max_context_tokens = static_cast<int>(options.max_context_tokens),
          .drafter = options.engine.num_draft_tokens > 0};
}

absl::StatusOr<ExpertLayout> ReadLayout(const WorkerOptions& options,
                                        const LoadOptions& load) {
  ASSIGN_OR_RETURN(const ModelRunnerInfo info,
                   LoadedDeepSeekV3::ReadInfo(load));
  if (info.num_experts == 0) {
    return FieldError("ep_size", "the model has no experts to share out");
  }
  return MakeExpertLayout(info.num_expert_layers, info.num_experts,
                          options.group.ep_size, options.num_redundant_experts);
}

// Those of the local ranks' slots at first. Empty: all, for good.
std::vector<std::vector<uint32_t>> ResidentExperts(const GroupLayout& group,
                                                   const ExpertLayout& layout) {
  if (group.local_ranks == group.ep_size) return {};
  return ExpertsOfRanks(ExpertPlacement(layout), group.rank_offset,
                        group.local_ranks);
}

absl::StatusOr<AnonymousRegion> MapAnonymous(size_t bytes) {
  void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (region == MAP_FAILED) {
    return FieldError("kv_cache_bytes",
                      absl::StrCat("cannot take ", bytes, " bytes"));
  }
  return AnonymousRegion(static_cast<std::byte*>(region), UnmapRegion{bytes});
}

}  // namespace

void UnmapRegion::operator()(std::byte* region) const { munmap(region, bytes); }

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(
    const WorkerOptions& options, WorkerObserver observer) {
  std::unique_ptr<WorkerProcess> process(new WorkerProcess);
  const absl::Time start = process->clock_.Now();
  RETURN_IF_ERROR(process->Load(options));
  const absl::Time loaded = process->clock_.Now();
  RETURN_IF_ERROR(process->TakePool(options));
  const absl::Time pooled = process->clock_.Now();
  process->StartAgent(options);
  RETURN_IF_ERROR(process->JoinGroup(options));
  process->StartRanks(options, observer);
  process->StartLoop(options, std::move(observer));
  RETURN_IF_ERROR(process->WarmUpFirstRank());
  const absl::Time warm = process->clock_.Now();
  LOG(INFO) << "warm fingerprint " << process->model().fingerprint << " isa "
            << VectorIsaName(process->cpu_.isa) << " threads "
            << process->threads_->num_threads() << " ranks "
            << process->ranks_.size() << " kv_blocks "
            << process->pool_->num_blocks() << " block_bytes "
            << process->pool_->block_bytes() << " load "
            << absl::FormatDuration(loaded - start) << " pool "
            << absl::FormatDuration(pooled - loaded) << " warm_up "
            << absl::FormatDuration(warm - pooled);
  return process;
}

absl::Status WorkerProcess::CheckModel(const WorkerOptions& options) {
  const LoadOptions load = ModelOptions(options);
  RETURN_IF_ERROR(LoadedDeepSeekV3::Check(load));
  if (options.group.ep_size == 1) return absl::OkStatus();
  return ReadLayout(options, load).status();
}

std::vector<std::string> WorkerProcess::kv_transports() const {
  return transport_ == nullptr ? std::vector<std::string>()
                               : transport_->ways();
}

absl::Status WorkerProcess::Load(const WorkerOptions& options) {
  threads_ = std::make_unique<ThreadPool>(ThreadPoolOptions{
      .num_threads =
          options.threads == 0 ? NumCpus() : static_cast<int>(options.threads),
      .pin_threads = options.pin_threads});
  cpu_ = {.isa = options.isa.value_or(SupportedVectorIsas().back()),
          .threads = threads_.get()};
  LoadOptions load = ModelOptions(options);
  if (options.group.ep_size > 1) {
    ASSIGN_OR_RETURN(layout_, ReadLayout(options, load));
    load.resident_experts = ResidentExperts(options.group, *layout_);
    loads_experts_ = !load.resident_experts.empty();
  }
  ASSIGN_OR_RETURN(weights_, LoadedDeepSeekV3::Load(load, cpu_));
  // Ranks share the CPUs: each has its device's thread alone.
  if (in_group()) cpu_.threads = nullptr;
  for (uint32_t i = 0; i < options.group.local_ranks; ++i) {
    std::unique_ptr<EpochExpertDispatch> dispatch;
    if (in_group()) {
      const uint32_t rank = options.group.rank_offset + i;
      dispatch = std::make_unique<EpochExpertDispatch>(group_shape(),
                                                       static_cast<int>(rank));
      dispatches_.push_back(dispatch.get());
    }
    runners_.push_back(std::make_unique<DeepSeekV3Runner>(weights_.get(), cpu_,
                                                          std::move(dispatch)));
  }
  return absl::OkStatus();
}

absl::Status WorkerProcess::TakePool(const WorkerOptions& options) {
  const size_t block_bytes = model().cache.block_bytes();
  const bool shared = options.role != WorkerRole::kUnified;
  ASSIGN_OR_RETURN(
      const uint32_t num_blocks,
      NumKvBlocks({.kv_cache_bytes = options.kv_cache_bytes,
                   .kv_blocks = options.kv_blocks,
                   .block_bytes = block_bytes,
                   .useful_blocks = options.group.local_ranks *
                                    UsefulBlocks(options, model())},
                  ReadFreeMemory()));
  const size_t bytes = KvPool::RegionBytes(num_blocks, block_bytes);
  std::byte* region = nullptr;
  if (shared) {
    ASSIGN_OR_RETURN(
        transport_,
        UcxTransport::Create({.mode = options.transport,
                              .network_devices = options.UcxDevices()}));
    const auto allocated = transport_->AllocateRegion(bytes);
    if (!allocated.ok()) {
      return FieldError(SizeFlag(options),
                        std::string(allocated.status().message()));
    }
    region = *allocated;
  } else {
    ASSIGN_OR_RETURN(region_, MapAnonymous(bytes));
    region = region_.get();
  }
  pool_ = std::make_unique<KvPool>(region, num_blocks, block_bytes);
  const uint32_t blocks_of_a_rank = num_blocks / options.group.local_ranks;
  if (blocks_of_a_rank == 0) {
    return FieldError(SizeFlag(options),
                      absl::StrCat(num_blocks, " blocks are too few for ",
                                   options.group.local_ranks, " ranks"));
  }
  for (uint32_t rank = 0; rank < options.group.local_ranks; ++rank) {
    rank_pools_.push_back(
        pool_->Slice(BlockId(rank * blocks_of_a_rank), blocks_of_a_rank));
  }
  for (uint32_t rank = 0; rank < options.group.local_ranks; ++rank) {
    runners_[rank]->BindKvPool(&rank_pools_[rank]);
  }
  return absl::OkStatus();
}

EngineOptions WorkerProcess::MakeEngineOptions(const WorkerOptions& options) {
  EngineOptions engine = options.engine;
  if (!options.async_scheduling) engine.pipeline_depth = 1;
  // The ranks of a group draft the same number of tokens.
  if (!in_group() && engine.num_draft_tokens > 0 &&
      options.adaptive_verification) {
    engine.step_curve =
        MeasureDecodeCurve(runners_.front().get(), engine, clock_);
  }
  return engine;
}

void WorkerProcess::StartAgent(const WorkerOptions& options) {
  if (transport_ == nullptr) return;
  agent_ = std::make_unique<KvTransferAgent>(
      KvTransferAgentOptions{.fingerprint = model().fingerprint,
                             .lease = options.kv_lease,
                             .checksums = options.kv_checksums},
      transport_.get(), pool_.get(), &clock_, [this](KvTransferEvent event) {
        const uint32_t rank = KvTransferPort::LocalRankOf(event);
        ranks_[rank]->engine().OnTransferEvent(
            KvTransferPort::ToRank(std::move(event)));
      });
}

absl::Status WorkerProcess::JoinGroup(const WorkerOptions& options) {
  if (!in_group()) return absl::OkStatus();
  ASSIGN_OR_RETURN(membership_,
                   GroupMembership::Start(MembershipOptions(options)));
  return absl::OkStatus();
}

void WorkerProcess::StartRanks(const WorkerOptions& options,
                               const WorkerObserver& observer) {
  const EngineOptions engine_options = MakeEngineOptions(options);
  for (uint32_t i = 0; i < runners_.size(); ++i) {
    const BlockId first_block(i * rank_pools_[i].num_blocks());
    WorkerRank::Parts parts = {.runner = runners_[i].get(),
                               .pool = &rank_pools_[i],
                               .transfer = {agent_.get(), i, first_block},
                               .clock = &clock_,
                               .cpu = cpu_,
                               .observer = observer.on_step,
                               .abort_observer = observer.on_abort};
    if (in_group()) {
      parts.observer = [this, i,
                        on_step = observer.on_step](const StepStats& stats) {
        if (on_step) on_step(stats);
        group_loop_->OnStepRows(i, stats.expert_rows);
      };
      parts.on_work = {[](void* membership) {
                         static_cast<GroupMembership*>(membership)->Wake();
                       },
                       membership_.get()};
    }
    ranks_.push_back(std::make_unique<WorkerRank>(engine_options, parts));
  }
}

void WorkerProcess::StartLoop(const WorkerOptions& options,
                              WorkerObserver observer) {
  if (in_group()) return StartGroupLoop(options, std::move(observer));
  loop_ = std::make_unique<EngineLoop>(&ranks_.front()->engine(),
                                       ranks_.front()->stream_to_poll(),
                                       agent_.get());
}

void WorkerProcess::StartGroupLoop(const WorkerOptions& options,
                                   WorkerObserver observer) {
  std::vector<GroupLoop::Rank> ranks;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks.push_back({&ranks_[i]->engine(), dispatches_[i]});
  }
  group_loop_ = std::make_unique<GroupLoop>(
      GroupLoopOptions{
          .stepper = {.vote = {.all_interval = options.all_interval,
                               .any_interval = options.any_interval},
                      .max_prefill_wait = options.max_prefill_wait,
                      .drafts = options.engine.num_draft_tokens > 0},
          .balancer = BalancerOptions(options),
          .watchdog = options.watchdog,
          .on_ready = std::move(observer.on_ready),
          .on_refused = std::move(observer.on_refused),
          .on_left = std::move(observer.on_left),
          .metrics = observer.group_metrics,
          .balance_metrics = observer.balance_metrics},
      membership_.get(), std::move(ranks), agent_.get(), &clock_);
  group_loop_->Start();
}

ExpertBalancerOptions WorkerProcess::BalancerOptions(
    const WorkerOptions& options) {
  ExpertBalancerOptions balancer;
  balancer.rebalance.mover.layout = *layout_;
  balancer.rebalance.interval = options.eplb_interval;
  balancer.rebalance.window_steps = options.eplb_window;
  balancer.rebalance.max_layers_in_flight = options.eplb_max_layers_in_flight;
  balancer.expert_bytes = weights_->expert_bytes();
  balancer.load_expert = [this](uint32_t layer, uint32_t expert) {
    return loads_experts_ ? weights_->AddExpert(layer, expert)
                          : absl::OkStatus();
  };
  balancer.drop_expert = [this](uint32_t layer, uint32_t expert) {
    if (loads_experts_) weights_->RemoveExpert(layer, expert);
  };
  return balancer;
}

ExpertGroupShape WorkerProcess::group_shape() const {
  return {.experts = weights_->expert_shape(),
          .num_ranks = static_cast<int>(layout_->num_ranks),
          .slots_per_rank = static_cast<int>(layout_->slots_per_rank)};
}

GroupMembershipOptions WorkerProcess::MembershipOptions(
    const WorkerOptions& options) const {
  const GroupLayout& layout = options.group;
  return {.formation = {.self = {.fingerprint = model().fingerprint,
                                 .options = GroupOptionsOf(options),
                                 .ep_size = layout.ep_size,
                                 .member = {.rank_offset = layout.rank_offset,
                                            .local_ranks = layout.local_ranks}},
                        .leader_address = layout.leader},
          .transport = {.shape = group_shape(),
                        .local_ranks = layout.local_ranks,
                        .process = layout.rank_offset / layout.local_ranks,
                        .mode = options.transport,
                        .network_devices = options.UcxDevices(),
                        .deadline = options.watchdog}};
}

// A group may end while one of its processes warms up.
absl::Status WorkerProcess::WarmUpFirstRank() {
  LLMEngine* const engine = &ranks_.front()->engine();
  for (;;) {
    if (group_loop_ != nullptr) RETURN_IF_ERROR(group_loop_->AwaitEpoch());
    absl::Status warm = WarmUp(engine, clock_, kWarmUpTimeout);
    if (group_loop_ == nullptr || !absl::IsUnavailable(warm)) return warm;
  }
}

std::vector<LLMEngine*> WorkerProcess::engines() const {
  std::vector<LLMEngine*> engines;
  for (const auto& rank : ranks_) engines.push_back(&rank->engine());
  return engines;
}

}  // namespace baton
