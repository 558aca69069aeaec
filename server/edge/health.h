// grpc.health.v1 by gRPC's own service, and reflection.
#ifndef BATON_SERVER_EDGE_HEALTH_H_
#define BATON_SERVER_EDGE_HEALTH_H_

#include <grpcpp/grpcpp.h>

namespace baton {

// Turns both on for every server built from now on. Once, before the first.
void EnableHealthAndReflection();

// The services "" and "readiness" serve together with the process; "liveness"
// serves as long as it answers. gRPC's "" serves from the start: build the
// server when it may.
void SetReadiness(grpc::Server* server, bool serving);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_HEALTH_H_
