// batond: a worker server. Token ids in, token ids out.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "comm/group_layout.h"
#include "kernels/cuda/cuda_library.h"
#include "server/balance_metrics.h"
#include "server/edge/config.h"
#include "server/edge/daemon.h"
#include "server/edge/memory_guard.h"
#include "server/edge/stream_budget.h"
#include "server/edge/stream_metrics.h"
#include "server/edge/stream_ticker.h"
#include "server/edge/version.h"
#include "server/group_metrics.h"
#include "server/step_metrics.h"
#include "server/step_watch.h"
#include "server/text/text_hash.h"
#include "server/worker_metrics.h"
#include "server/worker_options.h"
#include "server/worker_process.h"
#include "server/worker_service.h"

namespace baton {
namespace {

v1::WorkerRole ToProto(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return v1::WORKER_ROLE_PREFILL;
    case WorkerRole::kDecode:
      return v1::WORKER_ROLE_DECODE;
    case WorkerRole::kUnified:
      return v1::WORKER_ROLE_UNIFIED;
  }
  return v1::WORKER_ROLE_UNSPECIFIED;
}

v1::GetWorkerInfoResponse MakeInfo(const WorkerOptions& options,
                                   const WorkerProcess& process) {
  v1::GetWorkerInfoResponse info;
  info.set_role(ToProto(options.role));
  info.set_num_local_ranks(options.group.local_ranks);
  info.set_ep_size(options.group.ep_size);
  info.set_max_context_tokens(
      process.engines().front()->limits().max_context_tokens);
  info.set_max_running_requests(options.engine.max_running_requests);
  info.set_max_waiting_requests(options.engine.max_waiting_requests);
  info.set_vocab_size(process.model().vocab_size);
  info.set_fingerprint(process.model().fingerprint);
  info.set_version(kBatonVersion);
  info.set_incarnation(RandomBits());
  for (std::string& way : process.kv_transports()) {
    info.add_kv_transports(std::move(way));
  }
  return info;
}

EngineLoad SumOf(const std::vector<LLMEngine*>& engines) {
  EngineLoad sum;
  for (const LLMEngine* engine : engines) sum += engine->load();
  return sum;
}

uint64_t ShedWaiting(const std::vector<LLMEngine*>& engines) {
  uint64_t count = 0;
  for (LLMEngine* engine : engines) {
    count += engine->ShedWaiting(OutOfMemoryError());
  }
  return count;
}

// What a process in a group has on /metrics besides, and one without has not.
class GroupSeries {
 public:
  GroupSeries(prometheus::Registry* registry, const std::string& role,
              const GroupLayout& layout) {
    if (layout.ep_size == 1) return;
    metrics_.emplace(registry, role,
                     GroupMetrics::Ranks{.group = layout.ep_size,
                                         .first = layout.rank_offset,
                                         .local = layout.local_ranks});
    balance_.emplace(registry, role);
  }

  GroupMetrics* metrics() { return metrics_ ? &*metrics_ : nullptr; }
  BalanceMetrics* balance() { return balance_ ? &*balance_ : nullptr; }
  void SetAge(absl::Time now) {
    if (balance_.has_value()) balance_->SetAge(now);
  }

 private:
  std::optional<GroupMetrics> metrics_;
  std::optional<BalanceMetrics> balance_;
};

// In the order of the start.
absl::Status CheckModel(const WorkerOptions& options) {
  RETURN_IF_ERROR(TextHash(options.model).status());
  return WorkerProcess::CheckModel(options);
}

LeaderWorkerSet ReadLeaderWorkerSet() {
  const auto read = [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return {.leader_address = read("LWS_LEADER_ADDRESS"),
          .group_size = read("LWS_GROUP_SIZE"),
          .worker_index = read("LWS_WORKER_INDEX")};
}

absl::Status ResolveAndValidate(WorkerOptions* options) {
  ASSIGN_OR_RETURN(options->group, ResolveGroupLayout(options->group_flags,
                                                      ReadLeaderWorkerSet()));
  return ValidateWorkerOptions(*options);
}

// A process in a group serves the others, too: that is as a request of theirs
// inside the gate, from the start on, which ends when they leave as well.
void LeaveGroupInDrain(Daemon* daemon, WorkerProcess* process) {
  daemon->OnDrain([process] {
    LOG(INFO) << "steps on for the others of its group until they leave, too: "
                 "one of the requests counted here";
    process->StartLeaving(absl::InfiniteFuture());
  });
  daemon->gate().OnCut(
      daemon, [process] { process->StartLeaving(absl::InfinitePast()); });
}

absl::StatusOr<int> Run(const WorkerOptions& options, const Flags& flags) {
  const std::string role = WorkerRoleName(options.role);
  Daemon daemon(options.daemon, role, flags);
  WorkerMetrics metrics(&daemon.registry(), role);
  StepMetrics step_metrics(&daemon.registry(), role);
  GroupSeries group(&daemon.registry(), role, options.group);
  StreamMetrics stream_metrics(&daemon.registry(), role);
  StreamBudget streams(options.streams.limits());
  const StreamTicker ticker(&streams);
  // Set while the process below lives and is scraped.
  std::atomic<WorkerProcess*> scraped{nullptr};
  RETURN_IF_ERROR(daemon.StartMetrics([&] {
    stream_metrics.Set(streams.counts());
    WorkerProcess* const worker = scraped.load();
    if (worker == nullptr) return;
    metrics.SetLoad(SumOf(worker->engines()));
    metrics.SetTransfers(worker->transfer_counters());
    group.SetAge(worker->clock().Now());
  }));
  const absl::Cleanup stop_metrics = [&daemon] { daemon.StopMetrics(); };
  LOG(INFO) << "device " << DeviceLine(OpenCudaLibraryNearProgram());
  ASSIGN_OR_RETURN(const std::string text_hash, TextHash(options.model));
  if (options.group.ep_size > 1) RETURN_IF_ERROR(daemon.gate().Enter());
  ASSIGN_OR_RETURN(
      const std::unique_ptr<WorkerProcess> process,
      WorkerProcess::Start(
          options,
          {.on_step = [&](const StepStats& s) { step_metrics.OnStep(s); },
           .on_abort = [&](const AbortStats& s) { metrics.OnAbort(s); },
           .on_ready = [&](bool ready) { daemon.SetReady(ready); },
           .on_refused = [&] { daemon.Stop(); },
           .on_left = [&] { daemon.gate().Leave(&daemon); },
           .group_metrics = group.metrics(),
           .balance_metrics = group.balance()}));
  v1::GetWorkerInfoResponse info = MakeInfo(options, *process);
  info.set_text_hash(text_hash);
  WorkerService service(std::move(info), {.engines = process->engines(),
                                          .clock = &process->clock(),
                                          .gate = &daemon.gate(),
                                          .metrics = &metrics,
                                          .streams = &streams,
                                          .group = group.metrics(),
                                          .balance = group.balance()});
  scraped.store(process.get());
  RETURN_IF_ERROR(
      daemon.Serve({{v1::WorkerService::service_full_name(), &service}}));
  if (options.group.ep_size > 1) LeaveGroupInDrain(&daemon, process.get());
  StepWatch watch({.timeout = options.stuck_step_timeout}, process->engines(),
                  &process->clock(), &daemon.registry(), role);
  daemon.OnTick([&] { daemon.SetLive(watch.Check()); });
  daemon.OnShed([&] { return ShedWaiting(process->engines()); });
  const int exit_code = daemon.Run();
  RETURN_IF_ERROR(process->refusal());
  return exit_code;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::WorkerOptions options;
  baton::Flags flags("batond",
                     "A Baton worker server: token ids in, token ids out.");
  baton::AddWorkerFlags(&flags, &options);
  const auto exit_code = flags.ParseOrExitCode(
      argc, argv, environ, [&] { return baton::ResolveAndValidate(&options); },
      [&] { return baton::CheckModel(options); });
  if (exit_code.has_value()) return *exit_code;
  const absl::StatusOr<int> ran = baton::Run(options, flags);
  if (ran.ok()) return *ran;
  LOG(ERROR) << "failed: " << ran.status().message();
  return 1;
}
