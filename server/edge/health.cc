#include "server/edge/health.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

namespace baton {

void EnableHealthAndReflection() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
}

void SetReadiness(grpc::Server* server, bool serving,
                  std::span<const std::string> services) {
  grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus("readiness", serving);
  for (const std::string& service : services) {
    health->SetServingStatus(service, serving);
  }
  health->SetServingStatus("grpc.health.v1.Health", true);
}

void SetLiveness(grpc::Server* server, bool live) {
  server->GetHealthCheckService()->SetServingStatus("liveness", live);
}

}  // namespace baton
