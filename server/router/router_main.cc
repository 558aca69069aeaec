// baton-router: the front door. Text in, text and token ids out.
#include <grpc/grpc.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/edge/config.h"
#include "server/edge/daemon.h"
#include "server/edge/memory_guard.h"
#include "server/router/admission.h"
#include "server/router/inference_service.h"
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
  std::string policy = "least_loaded";
  uint32_t max_retries = 2;
  absl::Duration worker_wait = absl::Seconds(5);
  Admission::Options admission;
  DaemonOptions daemon = {.listen = "127.0.0.1:50051",
                          .metrics_listen = "127.0.0.1:9464"};
};

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
                      "address of the name is one."});
  flags->Add(&o->decode,
             {.name = "decode", .help = "Decode workers, likewise."});
  flags->Add(&o->unified,
             {.name = "unified", .help = "Unified workers, likewise."});
  flags->Add(&o->workers_file,
             {.name = "workers_file",
              .help = "More workers: a file of lines like 'decode host:port' "
                      "or 'unified dns:NAME:PORT', and comments after #. It "
                      "is read again each second; workers join and leave as "
                      "it says."});
  flags->Add(&o->discovery_interval, {.name = "discovery_interval",
                                      .help = "Between two look-ups of a name.",
                                      .min = 0.1,
                                      .max = 3600});
  flags->AddChoice(
      &o->policy,
      {{"least_loaded", "least_loaded"}, {"round_robin", "round_robin"}},
      {.name = "policy", .help = "Which worker of a pool takes a request."});
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
  flags->Add(&o->max_retries,
             {.name = "max_retries",
              .help = "How often a request whose worker is lost is tried "
                      "again, or goes on with its very tokens elsewhere; "
                      "counted anew with each token.",
              .min = 0,
              .max = 10});
  flags->Add(
      &o->worker_wait,
      {.name = "worker_wait",
       .help = "How long such a request waits for a worker when no other "
               "one is ready.",
       .min = 0,
       .max = 3600});
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
  return ValidateDaemonOptions(o.daemon);
}

absl::Status Check(const RouterFlags& o) {
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
  options.make_policy = [policy = o.policy] {
    return MakeRoutingPolicy(policy);
  };
  options.admission = o.admission;
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
