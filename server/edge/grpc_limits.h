// What both ends of every gRPC connection bound, and how they notice that the
// other one is gone.
#ifndef BATON_SERVER_EDGE_GRPC_LIMITS_H_
#define BATON_SERVER_EDGE_GRPC_LIMITS_H_

#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

namespace baton {

// A million 32-bit ids and their log-probabilities. One byte more is
// RESOURCE_EXHAUSTED.
inline constexpr int kMaxGrpcMessageBytes = 16 * 1024 * 1024;
// Of a call's headers; likewise.
inline constexpr int kMaxGrpcMetadataBytes = 16 * 1024;
// Of one connection; further calls wait at its client. Above what a router has
// at work at one worker.
inline constexpr int kMaxGrpcStreams = 64 * 1024;
// What a stream may have under way before its reader asks for more.
inline constexpr int kGrpcStreamWindowBytes = 64 * 1024;

// A connection that is silent for so long is asked whether it is there, and is
// gone if it does not answer in time, whether calls are open or not. A reader
// that is merely slow answers.
struct GrpcKeepalive {
  int time_milliseconds = 20'000;
  int timeout_milliseconds = 10'000;
  // Of a server: its clients may ping this often, with calls or without.
  int min_ping_interval_milliseconds = 5'000;
  // Of a server: who connects and does not speak HTTP/2 by then is gone.
  int handshake_milliseconds = 10'000;
};
inline constexpr GrpcKeepalive kServerKeepalive;
// Sooner than the server's: whoever waits for a worker notices first.
inline constexpr GrpcKeepalive kWorkerKeepalive = {
    .time_milliseconds = 10'000, .timeout_milliseconds = 5'000};

// Connections have no age at which they end: a stream may last as long as it
// takes.
inline void SetGrpcLimits(grpc::ServerBuilder* builder,
                          const GrpcKeepalive& keepalive = kServerKeepalive) {
  builder->SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  // gRPC looks at the size of what it has unpacked, a thousand times more than
  // what came, when it has it: so it unpacks nothing.
  builder->AddChannelArgument(
      GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
      1 << GRPC_COMPRESS_NONE);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE,
                              kMaxGrpcMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxGrpcStreams);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                              keepalive.time_milliseconds);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              keepalive.timeout_milliseconds);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      keepalive.min_ping_interval_milliseconds);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              keepalive.handshake_milliseconds);
  // Else it stops asking behind two pings on a stream without data.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

// Of a channel to a worker, with streams that are not always read: each keeps
// one window in memory, however fast the others are.
inline void SetWorkerChannelLimits(
    grpc::ChannelArguments* arguments,
    const GrpcKeepalive& keepalive = kWorkerKeepalive) {
  arguments->SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  arguments->SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments->SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                    kGrpcStreamWindowBytes);
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive.time_milliseconds);
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                    keepalive.timeout_milliseconds);
  arguments->SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments->SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

}  // namespace baton

#endif  // BATON_SERVER_EDGE_GRPC_LIMITS_H_
