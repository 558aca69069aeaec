#include "server/cli/health.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_split.h"
#include "proto/baton/v1/health.grpc.pb.h"
#include "server/edge/grpc_status.h"

namespace baton {

void AddHealthFlags(Flags& flags, HealthOptions* options) {
  flags.AddPositional(&options->endpoints,
                      {.name = "endpoints",
                       .help = "host:port of a server; more after commas.",
                       .required = true});
  flags.Add(&options->service,
            {.name = "service",
             .help = "Name of a service; absent: the server as a whole."});
  flags.Add(&options->timeout, {.name = "timeout",
                                .help = "How long to wait for each answer.",
                                .min = 0.001,
                                .max = 3600});
}

absl::StatusOr<std::string> CheckHealth(const std::string& endpoint,
                                        const std::string& service,
                                        absl::Duration timeout) {
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(timeout));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(
      response.status());
}

int RunHealth(const HealthOptions& options, const Console& console) {
  const std::vector<std::string> endpoints =
      absl::StrSplit(options.endpoints, ',', absl::SkipEmpty());
  if (endpoints.empty()) {
    console.err << "baton health: name an endpoint, as host:port\n";
    return kExitUsage;
  }
  int exit_code = kExitOk;
  for (const std::string& endpoint : endpoints) {
    const auto health = CheckHealth(endpoint, options.service, options.timeout);
    console.out << endpoint << " "
                << (health.ok() ? *health : health.status().ToString()) << "\n";
    if (!health.ok() || *health != "SERVING") exit_code = kExitFailed;
  }
  if (exit_code != kExitOk) {
    console.err << "baton health: not every server is serving; look at its "
                   "process and its log\n";
  }
  return exit_code;
}

}  // namespace baton
