#include "server/router/worker_client.h"

#include "base/status_macros.h"
#include "server/edge/grpc_limits.h"

namespace baton {
namespace {

// How soon after a failure to connect again; growing up to the second.
constexpr int kInitialReconnectMilliseconds = 100;
constexpr int kMaxReconnectMilliseconds = 250;
// A host that is gone without a word is noticed after both.
constexpr int kKeepaliveTimeMilliseconds = 10'000;
constexpr int kKeepaliveTimeoutMilliseconds = 5'000;
constexpr std::chrono::seconds kAbortTimeout(5);

// shared_ptr is gRPC's own way to hand out a channel.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   kInitialReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   kMaxReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   kKeepaliveTimeoutMilliseconds);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // No limit.
  // We retry ourselves; gRPC's layer for it costs time in every message.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

WorkerClient::WorkerClient(const std::string& address)
    : WorkerClient(address, MakeChannel(address)) {}

// The stubs share the channel.
WorkerClient::WorkerClient(const std::string& address,
                           const std::shared_ptr<grpc::Channel>& channel)
    : address_(address),
      worker_(v1::WorkerService::NewStub(channel)),
      health_(grpc::health::v1::Health::NewStub(channel)) {}

void WorkerClient::StartPrefill(const v1::PrefillRequest& request,
                                Deadline deadline, PrefillStream* stream) {
  stream->context_.set_deadline(deadline);
  worker_->async()->Prefill(&stream->context_, &request, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
}

void WorkerClient::StartDecode(const v1::DecodeRequest& request,
                               Deadline deadline, DecodeStream* stream) {
  stream->context_.set_deadline(deadline);
  worker_->async()->Decode(&stream->context_, &request, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
}

void WorkerClient::StartAbort(const v1::AbortRequest& request) {
  struct Call {
    grpc::ClientContext context;
    v1::AbortRequest request;
    v1::AbortResponse response;
  };
  Call* const call = new Call;  // Deleted at its end.
  call->request = request;
  call->context.set_deadline(std::chrono::system_clock::now() + kAbortTimeout);
  worker_->async()->Abort(&call->context, &call->request, &call->response,
                          [call](const grpc::Status&) { delete call; });
}

absl::StatusOr<ProbeAnswer> WorkerClient::Probe(Deadline deadline, bool wait) {
  grpc::health::v1::HealthCheckResponse health;
  RETURN_IF_ERROR(Ask(deadline, wait, [&](grpc::ClientContext* context) {
    return health_->Check(context, grpc::health::v1::HealthCheckRequest(),
                          &health);
  }));
  if (health.status() != grpc::health::v1::HealthCheckResponse::SERVING) {
    return absl::UnavailableError("not serving");
  }
  ProbeAnswer answer;
  RETURN_IF_ERROR(Ask(deadline, false, [&](grpc::ClientContext* context) {
    return worker_->GetWorkerInfo(context, v1::GetWorkerInfoRequest(),
                                  &answer.info);
  }));
  RETURN_IF_ERROR(Ask(deadline, false, [&](grpc::ClientContext* context) {
    return worker_->GetLoad(context, v1::GetLoadRequest(), &answer.load);
  }));
  return answer;
}

template <typename Call>
absl::Status WorkerClient::Ask(Deadline deadline, bool wait, const Call& call) {
  grpc::ClientContext context;
  context.set_deadline(deadline);
  context.set_wait_for_ready(wait);
  {
    absl::MutexLock lock(&mutex_);
    if (probes_cancelled_) return absl::CancelledError();
    probe_ = &context;
  }
  const grpc::Status status = call(&context);
  absl::MutexLock lock(&mutex_);
  probe_ = nullptr;
  return FromGrpcStatus(status);
}

void WorkerClient::CancelProbes() {
  absl::MutexLock lock(&mutex_);
  probes_cancelled_ = true;
  if (probe_ != nullptr) probe_->TryCancel();
}

}  // namespace baton
