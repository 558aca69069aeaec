// What a gRPC message may be, at both ends of every call.
#ifndef BATON_SERVER_EDGE_GRPC_LIMITS_H_
#define BATON_SERVER_EDGE_GRPC_LIMITS_H_

namespace baton {

// A million 32-bit ids and their log-probabilities.
inline constexpr int kMaxGrpcMessageBytes = 16 * 1024 * 1024;

}  // namespace baton

#endif  // BATON_SERVER_EDGE_GRPC_LIMITS_H_
