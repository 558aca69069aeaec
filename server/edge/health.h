// grpc.health.v1 by gRPC's own service, and reflection.
#ifndef BATON_SERVER_EDGE_HEALTH_H_
#define BATON_SERVER_EDGE_HEALTH_H_

#include <grpcpp/grpcpp.h>

#include <span>
#include <string>

namespace baton {

// Turns both on for every server built from now on. Once, before the first.
void EnableHealthAndReflection();

// What health says of "", "readiness" and `services` (full names, such as
// baton.v1.WorkerService), which serve together with the process;
// grpc.health.v1.Health serves as long as it answers. Other names are NOT_FOUND
// to Check and SERVICE_UNKNOWN to Watch. gRPC's "" serves from the start: build
// the server when it may.
void SetReadiness(grpc::Server* server, bool serving,
                  std::span<const std::string> services = {});
// What it says of "liveness".
void SetLiveness(grpc::Server* server, bool live);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_HEALTH_H_
