// baton-router: the front door. Text in, text and token ids out.
#include <grpc/grpc.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/edge/config.h"
#include "server/edge/daemon.h"
#include "server/edge/memory_guard.h"
#include "server/edge/stream_flags.h"
#include "server/router/admission.h"
#include "server/router/inference_service.h"
#include "server/router/outlier_ejection.h"
#include "server/router/retry_budget.h"
#include "server/router/router.h"
#include "server/router/routing_policy.h"
#include "server/router/worker_directory.h"
#include "server/router/worker_discovery.h"
#include "server/text/text_model.h"

namespace baton {
namespace {

struct RouterFlags {
  std::string model;
  std::string model_name;
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> unified;
  std::string workers_file;
  absl::Duration discovery_interval = absl::Seconds(5);
  std::string policy = "prefix_affinity";
  PrefixAffinityPolicy::Options affinity;
  OutlierEjection::Options ejection;
  RetryBudget::Options retry_budget;
  uint32_t max_retries = 2;
  absl::Duration worker_wait = absl::Seconds(5);
  Admission::Options admission;
  StreamFlags streams;
  DaemonOptions daemon = {.listen = "127.0.0.1:50051",
                          .metrics_listen = "127.0.0.1:9464"};
};

void AddRoutingFlags(Flags* flags, RouterFlags* o) {
  flags->Group("Routing");
  flags->AddChoice(
      &o->policy,
      {{"prefix_affinity", "prefix_affinity"},
       {"least_loaded", "least_loaded"},
       {"power_of_two", "power_of_two"},
       {"round_robin", "round_robin"}},
      {.name = "policy",
       .help = "Which worker of a pool takes a request. prefix_affinity: whose "
               "cache has most of its prompt, unless too many requests stand "
               "there; among decode workers only where loads are equal. It is "
               "the default since, modelled, its mean latency is never above "
               "that of least_loaded by more than 3 %, whatever prompts share, "
               "and down to a third where they share much; at light load its "
               "p99 may be half a prompt's computation above. power_of_two: "
               "the less loaded of two that are drawn."});
  flags->Add(&o->affinity.extra_requests,
             {.name = "affinity_extra_requests",
              .help = "So many requests more than at the least loaded worker "
                      "may stand where prefix_affinity sends one.",
              .min = 0,
              .max = 1e6});
  flags->Add(&o->affinity.extra_load_ratio,
             {.name = "affinity_extra_load",
              .help = "Or, if that is more, such a part of the least load "
                      "above it.",
              .min = 0,
              .max = 100});
  flags->Add(&o->ejection.failures_in_a_row,
             {.name = "eject_after",
              .help = "After so many failed calls in a row, or when half of at "
                      "least 20 within 30 s fail, a worker takes nothing for a "
                      "while; then one request at a time until one succeeds. "
                      "0: never.",
              .min = 0,
              .max = 1e6});
  flags->Add(&o->ejection.first_ejection,
             {.name = "eject_for",
              .help = "That while; twice as long each time that it fails "
                      "again, up to 300 s.",
              .min = 0.001,
              .max = 300});
  flags->Add(&o->ejection.max_ejected_share,
             {.name = "max_ejected",
              .help = "The part of a pool's workers that are well by their "
                      "probes, rounded down, that may be ejected at once.",
              .min = 0,
              .max = 0.9});
}

void AddRetryFlags(Flags* flags, RouterFlags* o) {
  flags->Add(&o->max_retries,
             {.name = "max_retries",
              .help = "How often a request whose worker is lost is tried "
                      "again, or goes on with its very tokens elsewhere; "
                      "counted anew with each token.",
              .min = 0,
              .max = 10});
  flags->Add(&o->retry_budget.retry_share,
             {.name = "retry_budget",
              .help = "Of all requests of the last 10 s so many may be tried "
                      "again from the start; more are UNAVAILABLE at once. "
                      "Streams that go on are not of these.",
              .min = 0,
              .max = 10});
  flags->Add(&o->retry_budget.min_retries,
             {.name = "min_retries",
              .help = "At least so many within 10 s.",
              .min = 0,
              .max = 1e6});
}

void AddFlags(Flags* flags, RouterFlags* o) {
  flags->Group("Model");
  flags->Add(&o->model, {.name = "model",
                         .help = "Folder with tokenizer.json, config.json and "
                                 "their kin; the weights are not read.",
                         .required = true});
  flags->Add(&o->model_name,
             {.name = "model_name",
              .help = "What GetModelInfo says; by default the folder's name."});
  flags->Group("Workers");
  flags->Add(&o->prefill,
             {.name = "prefill",
              .help = "Prefill workers, host:port,...; of dns:NAME:PORT each "
                      "address of the name is one, the IPv4 ones alone if it "
                      "has such."});
  flags->Add(&o->decode,
             {.name = "decode", .help = "Decode workers, likewise."});
  flags->Add(&o->unified,
             {.name = "unified", .help = "Unified workers, likewise."});
  flags->Add(&o->workers_file,
             {.name = "workers_file",
              .help = "More workers: a file of lines like 'decode host:port' "
                      "or 'unified dns:NAME:PORT', and comments after #. It "
                      "is read again each second; workers join and leave as "
                      "it says. Replace it by rename; an empty file changes "
                      "nothing, one with a comment alone lists nobody."});
  flags->Add(&o->discovery_interval, {.name = "discovery_interval",
                                      .help = "Between two look-ups of a name.",
                                      .min = 0.1,
                                      .max = 3600});
  AddRoutingFlags(flags, o);
  flags->Group("Requests");
  flags->Add(&o->admission.max_concurrent_requests,
             {.name = "max_concurrent_requests",
              .help = "Requests that workers work for at once.",
              .min = 1,
              .max = 1e6});
  flags->Add(&o->admission.max_queued_requests,
             {.name = "max_queued_requests",
              .help = "Requests that may wait; more are RESOURCE_EXHAUSTED.",
              .min = 0,
              .max = 1e6});
  AddRetryFlags(flags, o);
  flags->Add(
      &o->worker_wait,
      {.name = "worker_wait",
       .help = "How long a request waits for workers when none is ready: "
               "from its turn on, and after each one that it has lost.",
       .min = 0,
       .max = 3600});
  AddStreamFlags(flags, &o->streams);
  AddDaemonFlags(flags, &o->daemon);
}

absl::Status AppendEntries(const char* flag, v1::WorkerRole role,
                           const std::vector<std::string>& list,
                           std::vector<WorkerEntry>* entries) {
  for (const std::string& text : list) {
    const absl::StatusOr<WorkerEntry> entry = ParseWorkerEntry(role, text);
    if (!entry.ok()) {
      return FieldError(flag, std::string(entry.status().message()));
    }
    entries->push_back(*entry);
  }
  if (entries->size() <= kMaxWorkers) return absl::OkStatus();
  return FieldError(flag, "more than " + std::to_string(kMaxWorkers) +
                              " workers with those before");
}

absl::StatusOr<std::vector<WorkerEntry>> EntriesOf(const RouterFlags& o) {
  std::vector<WorkerEntry> entries;
  RETURN_IF_ERROR(
      AppendEntries("prefill", v1::WORKER_ROLE_PREFILL, o.prefill, &entries));
  RETURN_IF_ERROR(
      AppendEntries("decode", v1::WORKER_ROLE_DECODE, o.decode, &entries));
  RETURN_IF_ERROR(
      AppendEntries("unified", v1::WORKER_ROLE_UNIFIED, o.unified, &entries));
  return entries;
}

absl::Status Validate(const RouterFlags& o) {
  RETURN_IF_ERROR(ValidateDaemonOptions(o.daemon));
  RETURN_IF_ERROR(EntriesOf(o).status());
  if (!o.workers_file.empty()) return absl::OkStatus();
  if (o.prefill.empty() != o.decode.empty()) {
    return o.prefill.empty()
               ? FieldError("prefill", "--decode workers need prefill workers")
               : FieldError("decode", "--prefill workers need decode workers");
  }
  if (o.prefill.empty() && o.unified.empty()) {
    return FieldError("unified",
                      "no workers: give --prefill and --decode, or --unified, "
                      "or --workers_file");
  }
  return absl::OkStatus();
}

absl::Status Check(const RouterFlags& o) {
  RETURN_IF_ERROR(LoadTextModel(o.model).status());
  return o.workers_file.empty() ? absl::OkStatus()
                                : ReadWorkersFile(o.workers_file).status();
}

Router::Options RouterOptions(const RouterFlags& o) {
  Router::Options options;
  options.model_name = o.model_name.empty()
                           ? std::filesystem::path(o.model + "/")
                                 .parent_path()
                                 .filename()
                                 .string()
                           : o.model_name;
  options.make_policy = [policy = o.policy,
                         affinity = o.affinity](v1::WorkerRole role) {
    RoutingPolicyOptions routing = {.seed = RandomBits(), .affinity = affinity};
    if (role == v1::WORKER_ROLE_DECODE) {
      // All that a decode worker saves is a transfer, and it works for a
      // request for as long as that generates.
      routing.affinity.extra_requests = 0;
      routing.affinity.extra_load_ratio = 0;
    }
    return MakeRoutingPolicy(policy, routing);
  };
  options.admission = o.admission;
  options.ejection = o.ejection;
  options.retry_budget = o.retry_budget;
  options.streams = o.streams.limits();
  options.max_retries = o.max_retries;
  options.worker_wait = o.worker_wait;
  return options;
}

absl::StatusOr<int> Run(const RouterFlags& o, const Flags& flags) {
  Daemon daemon(o.daemon, "router", flags);
  ASSIGN_OR_RETURN(const TextModel text, LoadTextModel(o.model));
  Router::Options options = RouterOptions(o);
  options.on_ready_change = [&daemon](bool ready) { daemon.SetReady(ready); };
  Router router(std::move(options), &text, &daemon.registry());
  RETURN_IF_ERROR(daemon.StartMetrics([&router] { router.UpdateGauges(); }));
  const absl::Cleanup stop_metrics = [&daemon] { daemon.StopMetrics(); };
  InferenceService service(&router, &daemon.gate());
  ASSIGN_OR_RETURN(std::vector<WorkerEntry> entries, EntriesOf(o));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<WorkerDiscovery> discovery,
      WorkerDiscovery::Start({.entries = std::move(entries),
                              .workers_file = o.workers_file,
                              .dns_interval = o.discovery_interval,
                              .on_change = [&router](const auto& workers) {
                                router.SetWorkers(workers);
                              }}));
  LOG(INFO) << "waiting for workers";
  router.pool().WaitUntilReady();
  RETURN_IF_ERROR(
      daemon.Serve({{v1::InferenceService::service_full_name(), &service}}));
  daemon.OnShed(
      [&router] { return router.admission().ShedWaiting(OutOfMemoryError()); });
  return daemon.Run();
}

int Main(int argc, char** argv) {
  RouterFlags o;
  Flags flags("baton-router",
              "The front door of Baton: owns all text, picks the workers of "
              "each request and relays their tokens.");
  AddFlags(&flags, &o);
  if (auto code = flags.ParseOrExitCode(
          argc, argv, environ, [&o] { return Validate(o); },
          [&o] { return Check(o); })) {
    return *code;
  }
  // gRPC's state lives as long as the process: taking it down may wait 10 s for
  // a poller that has nothing to poll.
  grpc_init();
  const absl::StatusOr<int> code = Run(o, flags);
  if (code.ok()) return *code;
  LOG(ERROR) << code.status().message();
  return 1;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
