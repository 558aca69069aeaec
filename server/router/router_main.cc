// baton-router: the front door. Text in, text and token ids out.
#include <grpc/grpc.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/edge/config.h"
#include "server/edge/daemon.h"
#include "server/router/admission.h"
#include "server/router/inference_service.h"
#include "server/router/router.h"
#include "server/router/routing_policy.h"
#include "server/router/worker_pool.h"
#include "server/text/text_model.h"

namespace baton {
namespace {

struct RouterFlags {
  std::string model;
  std::string model_name;
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> unified;
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
             {.name = "prefill", .help = "Prefill workers, host:port,..."});
  flags->Add(&o->decode,
             {.name = "decode", .help = "Decode workers, host:port,..."});
  flags->Add(&o->unified,
             {.name = "unified", .help = "Unified workers, host:port,..."});
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

absl::Status CheckAddresses(const char* flag,
                            const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    const size_t colon = address.rfind(':');
    int port = 0;
    if (colon != std::string::npos && colon > 0 &&
        absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
        port <= 65535) {
      continue;
    }
    return FieldError(flag, "'" + address + "' is not host:port");
  }
  return absl::OkStatus();
}

absl::Status Validate(const RouterFlags& o) {
  RETURN_IF_ERROR(CheckAddresses("prefill", o.prefill));
  RETURN_IF_ERROR(CheckAddresses("decode", o.decode));
  RETURN_IF_ERROR(CheckAddresses("unified", o.unified));
  if (o.prefill.empty() != o.decode.empty()) {
    return o.prefill.empty()
               ? FieldError("prefill", "--decode workers need prefill workers")
               : FieldError("decode", "--prefill workers need decode workers");
  }
  if (o.prefill.empty() && o.unified.empty()) {
    return FieldError("unified",
                      "no workers: give --prefill and --decode, or --unified");
  }
  return absl::OkStatus();
}

Router::Options RouterOptions(const RouterFlags& o) {
  Router::Options options;
  options.model_name = o.model_name.empty()
                           ? std::filesystem::path(o.model + "/")
                                 .parent_path()
                                 .filename()
                                 .string()
                           : o.model_name;
  for (const std::string& address : o.prefill) {
    options.workers.push_back({address, v1::WORKER_ROLE_PREFILL});
  }
  for (const std::string& address : o.decode) {
    options.workers.push_back({address, v1::WORKER_ROLE_DECODE});
  }
  for (const std::string& address : o.unified) {
    options.workers.push_back({address, v1::WORKER_ROLE_UNIFIED});
  }
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
  LOG(INFO) << "waiting for workers";
  router.pool().WaitUntilReady();
  RETURN_IF_ERROR(
      daemon.Serve({{v1::InferenceService::service_full_name(), &service}}));
  return daemon.Run();
}

int Main(int argc, char** argv) {
  RouterFlags o;
  Flags flags("baton-router",
              "The front door of Baton: owns all text, picks the workers of "
              "each request and relays their tokens.");
  AddFlags(&flags, &o);
  if (auto code = flags.ParseOrExitCode(argc, argv, environ,
                                        [&o] { return Validate(o); })) {
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
